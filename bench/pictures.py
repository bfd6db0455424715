"""Draws a bench's picture with another interpreter than the one that has measured.

Benches that are clients need Debian's interpreter for its grpcio, which has no matplotlib.
"""
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent / "build" / "venv-bench" / "bin" / "python"


def draw(script: str, record: Path):
    """Runs `script --draw record.csv` in build/venv-bench, which it makes."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", PYTHON.parent.parent], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "matplotlib"], check=True)
    subprocess.run([PYTHON, script, "--draw", record.with_suffix(".csv")], check=True)
