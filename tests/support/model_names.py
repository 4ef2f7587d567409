"""Names of models with every kind of character that MLflow allows: no `/`, `:`, nor `..` in front."""

MODEL_NAMES = (
    "my model", "modèle été", "模型一", "模型二", "it's \"quoted\"", "a@b", "a@b@c", "a?b=c", "a#b", "100%20",
    "a;b", "a|b`c", ".hidden", "-dash", " spaces ", "back\\slash", "a*b", "{{ model }}", "$HOME", "a,b=c",
    "<b>bold", "tab\tname", "rec.onnx", "UPPER", "x" * 200,
)  # fmt: skip

COMPOSED = (
    "it's \"my\" modèle 模型", "a@b@c?d=e&f#g", "100%20;|`*\\{{ model }}$HOME,<b>", " .hidden ", "-tab\tname",
    "x" * 200,
)  # fmt: skip
"""The same characters in few names, for tests in which each name costs seconds."""
