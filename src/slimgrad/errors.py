"""Every error slimgrad raises, by whose fault it is.

    SlimgradError
     |- ConfigError      the call cannot work: the message says what to type instead
     |   `- UnknownCodec   no codec has that name (lists the known ones)
     |- CorruptPayload   the bytes of a blob are not what an encoder wrote
     |- StorageFull      a tier has no room left: says which, how much, which option
     |- ChangedInPlace   a tensor needed for backward was modified after it was saved
     `- InternalError    our mistake: please report it with the text of the message

This module imports nothing of slimgrad, so every layer can raise.
"""


class SlimgradError(Exception):
    """Base of all errors raised by slimgrad."""


class ConfigError(SlimgradError, ValueError):
    """The arguments cannot work together, or with this tensor."""


class UnknownCodec(ConfigError):
    """No codec has this name."""

    def __init__(self, name: object, known: list[str]) -> None:
        super().__init__(f"expected one of the codecs {', '.join(known)}, got {name!r}")


class CorruptPayload(SlimgradError):
    """A blob's bytes are truncated or altered."""


class StorageFull(SlimgradError):
    """A storage tier cannot take another blob."""


class ChangedInPlace(SlimgradError, RuntimeError):
    """A saved tensor was modified in place before backward read it; torch raises RuntimeError here too."""


class InternalError(SlimgradError):
    """A state that slimgrad's own code should never reach."""
