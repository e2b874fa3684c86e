"""The whole recipe: text, corpus, tokenizer, training, lessons, answers and exits, Hugging Face folder, bundle.

python models/nano/recipe.py --text TEXTS --work build/nano --minutes 110
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    args = arguments()
    sys.path.insert(0, str(HERE))
    import data
    import finetune
    import lessons
    from reading import TrainingRecord
    from train import Trainer

    args.work.mkdir(parents=True, exist_ok=True)
    stories, tok = data.prepare(args.text, args.work)
    Trainer(stories, tok, args.work, args.minutes).run()
    lessons.teach(args.text, args.work, args.lessons)
    finetune.Finetuning(args.text, args.work, args.answers, finetune.PEAK).run()
    if not args.no_bundle:
        bundle(args.work / "hf.finetuned")
        TrainingRecord(args.work).put(HERE / "bundle")


def bundle(folder):
    # -P: the installed edgedec, not the folder of that name where this is started.
    command = [sys.executable, "-P", "-m", "edgedec", "export", str(folder), "-o", str(HERE / "bundle")]
    subprocess.run([*command, "--name", "nano", "--weights", "int8", "--kv", "f32,int8", "--force"], check=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with the story files")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints, log and the Hugging Face folder")
    parser.add_argument("--minutes", type=float, default=110, help="training time, all of it (default 110)")
    parser.add_argument("--lessons", type=float, default=70, help="minutes of lessons after it (default 70)")
    parser.add_argument("--answers", type=float, default=45, help="minutes of answers and early exits (default 45)")
    parser.add_argument("--no-bundle", action="store_true", help="stop at the Hugging Face folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
