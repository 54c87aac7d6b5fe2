"""Runs the Python of a page, block by block, in the interpreter that the page has installed.

It is handed to that interpreter as text (`python -c`), so it has the standard library alone. Each
line of standard input is a block; the answer on the descriptor of the first argument is "done", or
ends because a block failed.
"""

import doctest
import json
import os
import sys

answers = int(sys.argv.pop())
namespace = {"__name__": "page"}
for line in sys.stdin:
    block = json.loads(line)
    if block["code"].startswith(">>>"):
        parser, failed = doctest.DocTestParser(), []
        test = parser.get_doctest(block["code"], namespace, "page", block["page"], block["line"])
        doctest.DocTestRunner().run(test, out=failed.append, clear_globs=False)
        if failed:
            sys.exit("".join(failed))
        namespace.update(test.globs)  # a doctest runs in a copy
    else:
        source = "\n" * (block["line"] - 1) + block["code"]  # errors then name the line of the page
        exec(compile(source, block["page"], "exec", dont_inherit=True), namespace)
    sys.stdout.flush()
    os.write(answers, b"done\n")
