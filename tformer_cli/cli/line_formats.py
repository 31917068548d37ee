"""What `tformer translate` writes for a line, and what it counts."""

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tformer_cli.translate.translator import TranslatedLine


def text_line(line: "TranslatedLine") -> str:
    """Return the best translation."""
    return f"{line.translations[0].text}\n"


def alignments_line(line: "TranslatedLine") -> str:
    """Return the word alignments in Pharaoh format."""
    from tformer_cli.text.segments import pharaoh

    return f"{pharaoh(line.translations[0].alignments or ())}\n"


def numbered_lines(line: "TranslatedLine") -> str:
    """Return the translations as `line ||| translation ||| score`."""
    from tformer_cli.translate.postprocess import SCORE_DECIMALS

    return "".join(
        f"{line.number} ||| {translation.text} ||| {translation.score:.{SCORE_DECIMALS}f}\n"
        for translation in line.translations
    )


class DefectTally:
    """Counts the lines with each defect, and those that were repaired, as an output of lines."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.num_defective = 0
        self.num_repaired = 0
        self.kinds: Counter[str] = Counter()

    def add(self, text: str, num_lines: int) -> None:
        """Count some more lines of `defects_line`."""
        self.num_lines += num_lines
        for line in text.splitlines():
            repair, *kinds = line.split("\t")
            self.num_repaired += repair != ""
            self.num_defective += kinds != []
            self.kinds.update(kinds)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.kinds.most_common())
        text = f"{self.num_defective:,} of {self.num_lines:,} translations have defects"
        text += f" ({kinds})" if kinds else ""
        return text + (f"; {self.num_repaired:,} repaired" if self.num_repaired else "")


def defects_line(line: "TranslatedLine") -> str:
    """Return how the translation was repaired and its kinds of defects, separated by tabs."""
    best = line.translations[0]
    return "\t".join([best.repair or "", *(defect.kind for defect in best.defects)]) + "\n"


def json_line(line: "TranslatedLine") -> str:
    """Return the translations with all that is known of them, as a JSON object."""
    from tformer_cli.translate.postprocess import SCORE_DECIMALS

    translations = line.translations
    content = {
        "line": line.number,
        "source": line.source,
        "source_tokens": translations[0].source_tokens,
        "translations": [
            {
                "text": translation.text,
                "tokens": translation.tokens,
                "score": round(translation.score, SCORE_DECIMALS),
                "log_prob": round(translation.log_prob, SCORE_DECIMALS),
                "finished": translation.finished,
                "alignments": translation.alignments,
                "defects": [asdict(defect) for defect in translation.defects],
                "repair": translation.repair,
                "confidence": translation.confidence,
            }
            for translation in translations
        ],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"
