# An image that serves runs: docker build -t tformer . && docker run -p 8000:8000 -v ./runs:/runs tformer /runs/demo
FROM python:3.13-slim

# torch's wheels for CPUs alone are a tenth of those with CUDA: its site names their index, for
# docker build --build-arg TORCH_INDEX=URL.
ARG TORCH_INDEX
RUN pip install --no-cache-dir torch ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY . /src
RUN pip install --no-cache-dir '/src[serve,ctranslate2]' && rm -r /src

RUN useradd --create-home tformer
USER tformer
WORKDIR /home/tformer
EXPOSE 8000
HEALTHCHECK --start-period=2m CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
# Within the container all addresses are its own; -p says who reaches them.
ENTRYPOINT ["tformer", "serve", "--host", "0.0.0.0"]
CMD ["/runs/demo"]
