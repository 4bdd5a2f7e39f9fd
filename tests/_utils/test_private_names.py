"""The private names of others that the package uses: this list is what to look at when a new
release breaks it.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import ray
import torch
import torchmetrics
import transformers
from ray.experimental import internal_kv
from torch import nn
from torch.nn.modules import batchnorm
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import DataLoader, TensorDataset, dataloader
from transformers.utils import output_capturing

import compss_train
from compss_train._utils import private_names

LINEAR = nn.Linear(1, 1)
LOADER = iter(DataLoader(TensorDataset(torch.zeros(1))))
WITH_PROCESSES = SimpleNamespace(
    **dict.fromkeys(dataloader._MultiProcessingDataLoaderIter.__init__.__code__.co_names)
)
CAPTURING_NETWORK = torch.nn.Module()
output_capturing.install_all_output_capturing_hooks(CAPTURING_NETWORK)
OWNERS = {
    "_BatchNorm": batchnorm,
    "_BaseDataLoaderIter": dataloader,
    "_SpectralNorm": parametrizations,
    "_CAN_RECORD_REGISTRY": output_capturing,
    "_backward_hooks": LINEAR,
    "_backward_pre_hooks": LINEAR,
    "_buffers": LINEAR,
    "_call_impl": LINEAR,
    "_can_record_outputs": transformers.PreTrainedModel,
    "_compiled_call_impl": LINEAR,
    "_dynamo": torch,
    "_foreach_norm": torch,
    "_forward_hooks": LINEAR,
    "_forward_pre_hooks": LINEAR,
    "_in_order": WITH_PROCESSES,
    "_indices": datasets.Dataset.from_dict({"x": [0]}),
    "_inject_new_class": parametrize,
    "_inject_property": parametrize,
    "_internal_kv_del": internal_kv,
    "_internal_kv_get": internal_kv,
    "_internal_kv_put": internal_kv,
    "_modules": LINEAR,
    "_non_persistent_buffers_set": LINEAR,
    "_num_workers": LOADER,
    "_output_capturing_hooks_installed": CAPTURING_NETWORK,
    "_parameters": LINEAR,
    "_prefetch_factor": WITH_PROCESSES,
    "_raylet": ray,
    "_post_accumulate_grad_hooks": torch.zeros(1),
    "_reductions": torchmetrics.MeanMetric(),
    "_state_dict_hooks": LINEAR,
    "_step_supports_amp_scaling": torch.optim.SGD([torch.zeros(1)], fused=True),
    "_to_sync": torchmetrics.MeanMetric(),
    "_update_count": torchmetrics.MeanMetric(),
    "_version": torch.zeros(1),
    "_utils": torch.utils.data,
    "_worker_info": torch.utils.data._utils.worker,
}


def test_the_list_is_complete():
    names = {*re.findall(r"\b_[a-zA-Z]\w*", Path(private_names.__file__).read_text())}
    assert names - {"_CAPTURING", "_HOOKS", "_NAMESPACE", "_kept_values"} == {*OWNERS}


def test_no_other_module_imports_private_names_of_others():
    of_others = re.compile(r"^ *(from|import) (?!compss_train|__future__).*\b_\w", re.MULTILINE)
    modules = Path(compss_train.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if of_others.search(path.read_text())] == [
        "private_names.py"
    ]


@pytest.mark.parametrize("name", OWNERS)
def test_others_have_the_name(name):
    assert hasattr(OWNERS[name], name)
