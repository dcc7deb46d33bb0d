"""Demo report: BLEU of the translation and of copying the source, and five translations.

python scripts/examples/demo/report.py SOURCE REFERENCE TRANSLATION
"""

from __future__ import annotations

import sys
from pathlib import Path

from nmt.scoring.metrics import bleu
from nmt.scoring.score import sacre_bleu


def main(source_path: str, reference_path: str, translation_path: str) -> None:
    """Print the report; the files have one sentence a line, without subword marks."""
    source, reference, translation = (
        Path(path).read_text(encoding="utf-8").splitlines() for path in (source_path, reference_path, translation_path)
    )
    for number in range(0, len(source), len(source) // 5)[:5]:
        print(f"  {source[number]}\n    -> {translation[number]}\n       {reference[number]} (reference)")
    score, signature = sacre_bleu(translation, reference)
    print(f"BLEU {bleu(translation, reference):.1f} on {len(source)} held-out sentences ", end="")
    print(f"(copying the source: {bleu(source, reference):.1f}); sacreBLEU {score:.1f} {signature}")


if __name__ == "__main__":
    main(*sys.argv[1:])
