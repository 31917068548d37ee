"""What a checkpoint consists of.

A checkpoint is a folder of safetensors and JSON; nothing in it is ever unpickled. Its
model.safetensors are the weights to translate with. Where those are a moving average, the weights
that the optimiser moves stand beside them in trained.safetensors. An average of checkpoints is
one too, without an optimiser: it translates, but no training goes on from it. SHA256SUMS, written
last, says what every file was when it was saved; `sha256sum --check SHA256SUMS` reads it too.
"""

FORMAT_VERSION = 3
MODEL_FILE = "model.safetensors"
TRAINED_FILE = "trained.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
SUMS_FILE = "SHA256SUMS"
# What a training goes on from, and what it takes to translate.
GOING_ON = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
TRANSLATING = (MODEL_FILE, STATE_FILE)
