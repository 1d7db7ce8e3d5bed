"""Programs that ship in packages on PyPI, fetched when a test needs them and run as they are.

Nothing of them is kept here: wheels are installed in a temporary folder, without their dependencies, so that torch
stays the one under test. Data and models are random and small; nothing is downloaded from a hub. Each runs in a folder
of its own, which holds its packages under `site`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.ranks.test_run_ddp import TORCHRUN

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: what to install for it, how to prepare it in a folder, and how to start it for a number of steps."""

    packages: tuple[str, ...] = ()  # besides those of the dev extra
    prepare: Callable[[Path, dict[str, str]], None] = lambda folder, environ: None
    command: Callable[[Path, int], Command]
    environ: dict[str, str] = field(default_factory=dict)


def fetched(packages: tuple[str, ...], folder: Path) -> str | None:
    """Install the packages in the folder; why that failed, or None."""
    if not packages:
        return None
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages)
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    return f"cannot fetch {', '.join(packages)}: {done.stderr.strip()[-300:]}" if done.returncode else None


def environ_of(program: Program, site: Path) -> dict[str, str]:
    """The environment of the program: its packages first, and no network."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", **program.environ}


def _words(seed: int, rows: int, *, vocabulary: int = 300) -> list[list[str]]:
    draw = random.Random(seed)
    return [[f"w{draw.randrange(vocabulary)}" for _ in range(draw.randint(5, 12))] for _ in range(rows)]


# --- accelerate: its own self-test, in the wheel ------------------------------------------------


def _accelerate(folder: Path, steps: int) -> Command:
    return (*TORCHRUN, "-m", "accelerate.test_utils.scripts.test_script")


# --- accelerate: a BERT trained and evaluated with Accelerate's loop, in the wheel, too ----------

_TINY_BERT = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*special, *(f"w{i}" for i in range(300))])}, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
named = dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")
PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(sys.argv[1])
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
named = BertConfig(vocab_size=304, max_position_embeddings=64, pad_token_id=3, **shape)
BertForSequenceClassification(named).save_pretrained(sys.argv[1])
"""
# The program loads data set and metric by name: folders of these names in the current folder come before the hub's.
_PAIRS = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.jsonl}
  - {split: validation, path: validation.jsonl}
---
"""
_ACCURACY = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""
_EPOCH = 30  # steps on two ranks


def _prepare_bert(folder: Path, environ: dict[str, str]) -> None:
    _prepared(environ, "-c", _TINY_BERT, str(folder / "model"))
    data, metric = folder / "nyu-mll" / "glue", folder / "glue"
    data.mkdir(parents=True)
    metric.mkdir()
    (data / "README.md").write_text(_PAIRS)
    (metric / "glue.py").write_text(_ACCURACY)
    for part, rows in (("train", 2 * 16 * _EPOCH), ("validation", 64)):
        pairs = zip(_words(3, rows), _words(4, rows), strict=True)
        lines = (
            json.dumps({"sentence1": " ".join(a), "sentence2": " ".join(b), "label": int(len(a) > len(b)), "idx": row})
            for row, (a, b) in enumerate(pairs)
        )
        (data / f"{part}.jsonl").write_text("\n".join(lines))


def _bert(folder: Path, steps: int) -> Command:
    options = ("--model_name_or_path", "model", "--output_dir", ".", "--num_epochs", str(-(-steps // _EPOCH)))
    return (*TORCHRUN, "-m", "accelerate.test_utils.scripts.external_deps.test_performance", *options)


# --- TRL: supervised fine-tuning with the Trainer of transformers -------------------------------

_TINY_MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
special = ["<unk>", "<s>", "</s>", "<pad>"]
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*special, *(f"w{i}" for i in range(300))])}, "<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
named = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>")
PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(sys.argv[1])
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
LlamaForCausalLM(LlamaConfig(vocab_size=304, max_position_embeddings=64, **shape)).save_pretrained(sys.argv[1])
"""


def _prepare_trl(folder: Path, environ: dict[str, str]) -> None:
    _prepared(environ, "-c", _TINY_MODEL, str(folder / "model"))
    (folder / "data").mkdir()
    rows = (json.dumps({"text": " ".join(words)}) for words in _words(0, 2000))
    (folder / "data" / "train.jsonl").write_text("\n".join(rows))


def _trl(folder: Path, steps: int) -> Command:
    options = {
        "model_name_or_path": folder / "model",
        "dataset_name": folder / "data",
        "output_dir": folder / "out",
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_length": 64,
        "dtype": "float32",
        "bf16": "false",
        "gradient_checkpointing": "false",
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
    }
    given = (part for name, value in options.items() for part in (f"--{name}", str(value)))
    return (*TORCHRUN, "-m", "trl.scripts.sft", "--use_cpu", *given)


# --- Sockeye: machine translation with torch's DistributedDataParallel ---------------------------


def _prepare_sockeye(folder: Path, environ: dict[str, str]) -> None:
    for part, rows in (("train", 2000), ("dev", 20)):
        lines = _words(1, rows)
        (folder / f"{part}.src").write_text("".join(" ".join(words) + "\n" for words in lines))
        (folder / f"{part}.trg").write_text("".join(" ".join(reversed(words)) + "\n" for words in lines))
    data = ("-s", str(folder / "train.src"), "-t", str(folder / "train.trg"), "-o", str(folder / "prepared"))
    _prepared(environ, "-m", "sockeye.prepare_data", "--shared-vocab", "--max-seq-len", "20", *data)


def _sockeye(folder: Path, steps: int) -> Command:
    data = ("-d", str(folder / "prepared"), "-vs", str(folder / "dev.src"), "-vt", str(folder / "dev.trg"))
    size = ("--transformer-model-size", "64", "--transformer-attention-heads", "4", "--num-layers", "1")
    more = ("--transformer-feed-forward-num-hidden", "128", "--batch-size", "512", "--max-seq-len", "20")
    ends = ("--max-updates", str(steps), "--checkpoint-interval", "50", "--decode-and-evaluate", "0")
    place = ("-o", str(folder / "out"), "--overwrite-output", "--shared-vocab")
    return (*TORCHRUN, "-m", "sockeye.train", "--dist", "--use-cpu", *data, *size, *more, *ends, *place)


# --- chemprop: properties of molecules with Lightning's Trainer ----------------------------------

_BONDED = ("C", "CC", "O", "N", "C(C)", "C(=O)", "C(F)")
_CHEMPROP_EPOCH = 30  # steps on two ranks: 8 of 10 molecules are trained on


def _prepare_chemprop(folder: Path, environ: dict[str, str]) -> None:
    draw, rows = random.Random(2), ["smiles,size"]
    for _ in range(2 * 16 * _CHEMPROP_EPOCH * 10 // 8):
        molecule = "C" + "".join(draw.choice(_BONDED) for _ in range(draw.randint(2, 8))) + "C"
        rows.append(f"{molecule},{len(molecule) + draw.random():.3f}")
    (folder / "molecules.csv").write_text("\n".join(rows) + "\n")


def _chemprop(folder: Path, steps: int) -> Command:
    data = ("-i", "molecules.csv", "-t", "regression", "-o", "out", "--batch-size", "16")
    size = ("--message-hidden-dim", "64", "--ffn-hidden-dim", "64")
    ends = ("--warmup-epochs", "0", "--epochs", str(-(-steps // _CHEMPROP_EPOCH)))
    return (*TORCHRUN, "site/bin/chemprop", "train", "--accelerator", "cpu", "--devices", "2", *data, *size, *ends)


def _prepared(environ: dict[str, str], *arguments: str) -> None:
    subprocess.run((sys.executable, *arguments), env={**os.environ, **environ}, check=True, capture_output=True)


_DATASETS = ("datasets==5.2.0", "pyarrow", "pandas", "xxhash", "multiprocess", "dill")
_CHEMPROP = ("chemprop==2.3.1", "cuik-molmaker-pin==2026.3.6", "rdkit==2026.3.6", "astartes", "descriptastorus")
_CHEMPROPS = ("myerson", "mhfp", "tabulate", "ConfigArgParse", "pandas", "pandas-flavor", "xarray", "six", "pillow")
_LEARN = ("scikit-learn", "joblib", "threadpoolctl", "multiprocess", "dill")
PROGRAMS = {
    "accelerate": Program(command=_accelerate, environ={"ACCELERATE_USE_CPU": "true"}),
    "bert": Program(
        packages=("evaluate==0.4.6", *_DATASETS),
        prepare=_prepare_bert,
        command=_bert,
        environ={"ACCELERATE_USE_CPU": "true", "HF_EVALUATE_OFFLINE": "1"},
    ),
    "chemprop": Program(packages=(*_CHEMPROP, *_CHEMPROPS, *_LEARN), prepare=_prepare_chemprop, command=_chemprop),
    "trl": Program(
        packages=("trl==1.16.0", *_DATASETS),
        prepare=_prepare_trl,
        command=_trl,
    ),
    "sockeye": Program(
        packages=("sockeye==3.1.34", "sacrebleu==2.6.0", "portalocker", "tabulate", "lxml"),
        prepare=_prepare_sockeye,
        command=_sockeye,
    ),
}
