# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import os
import shutil

import pytest
from cluster import Cluster, stop


@pytest.fixture
def cluster(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces and slurmd")
    if lacks := [name for name in ("slurmctld", "slurmd", "munged", "ip") if shutil.which(name) is None]:
        pytest.skip(f"needs slurm-wlm, and lacks {lacks[0]}: apt-get install slurm-wlm munge iproute2")
    try:
        yield Cluster(tmp_path_factory.mktemp("c"))
    finally:
        stop()
