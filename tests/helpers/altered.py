"""Ledgers rewritten as somebody would who knows their format: the plain chain holds again."""

from dpmpi.privacy.ledger import FIRST, _hash, _line, read_lines
from dpmpi.privacy.ledger_proofs import signed_bytes


def rehash(path, change, key=None, sign=None, keep=lambda entry: True):
    """Apply `change` to every entry that is kept, and compute the hashes anew.

    With `key` the macs are made anew too, as the owner could, and with `sign` the signatures; else the old ones stay.
    """
    prev, lines, whose = FIRST, [], ("", -1)
    for line in read_lines(path):
        if not keep(line.entry):
            continue
        entry = line.entry | {"prev": prev, "seq": len(lines)}
        change(entry)
        whose = (entry["run"], entry["rank"]) if entry["type"] == "header" else whose
        prev = _hash(entry)
        proofs = {"hash": prev, "mac": line.mac if key is None else key.mac(prev), "signature": line.signature}
        if sign is not None:
            proofs["signature"] = sign(signed_bytes(*whose, entry["seq"], prev)).hex()
        lines.append(_line(entry | {name: value for name, value in proofs.items() if value is not None}))
    path.write_text("".join(f"{line}\n" for line in lines))
