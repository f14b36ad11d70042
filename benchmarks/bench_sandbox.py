"""Speed of the sandbox: milliseconds for a call that does nothing, from the caller's side."""

import argparse
import statistics
import time

from lit_agentrl.agents.tools.sandbox.sandbox import Sandbox


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    calls = parser.parse_args().calls
    for groups in (True, False):
        begin = time.perf_counter()
        with Sandbox(use_control_group=groups) as sandbox:
            sandbox.run("")
            start_ms = 1000 * (time.perf_counter() - begin)
            times = []
            for _ in range(calls):
                begin = time.perf_counter()
                sandbox.run("print(1)")
                times.append(1000 * (time.perf_counter() - begin))
        cuts = statistics.quantiles(times, n=20)
        print(
            f"control groups {'yes' if groups else 'no ':<3}  start {start_ms:.0f} ms  fastest {min(times):.1f}  "
            f"5 % {cuts[0]:.1f}  median {statistics.median(times):.1f}  95 % {cuts[-1]:.1f} ms"
        )


if __name__ == "__main__":
    main()
