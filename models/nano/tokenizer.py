"""Trains the 4096-token byte-level BPE and writes it the way Hugging Face folders carry it."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
VOCAB = 4096
# What a merge may not cross while merges are learned: digits stay single.
PIECES = r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# What splits text afterwards. It gives the same tokens, as no merge holds a digit, but for a quote inside a word
# ("C'mon"); and it consists of parts that onnxruntime-genai's tokenizer supports.
SHIPPED = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}"
)


def train(stories):
    """Stories -> Tokenizer; `encode(text)` puts the begin token in front."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pieces(PIECES)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        stories,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tok.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, tok.token_to_id(END))]
    )
    if tok.get_vocab_size() != VOCAB:
        raise ValueError(f"the corpus gave {tok.get_vocab_size()} tokens, not {VOCAB}: use more text")
    tok.pre_tokenizer = pieces(SHIPPED)
    return tok


def pieces(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def write(tok, folder):
    folder = Path(folder)
    tok.save(str(folder / "tokenizer.json"))
    special = {"bos_token": END, "eos_token": END, "pad_token": END}
    config = special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
