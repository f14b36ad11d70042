"""What tests of Java simulators share: whether there is a Java, and the Java processes below a process."""

import pytest
from process_watch import descendants

from lit_agentrl.envs.java import find_java

needs_java = pytest.mark.skipif(find_java() is None, reason="needs Java: apt-get install openjdk-17-jre-headless")


def java_below(pid):
    """Return the ids of the Java processes that a process has started, itself or through others."""
    return [one for one, process in descendants(pid).items() if process.name == "java"]
