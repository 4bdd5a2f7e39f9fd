from compss_train.data.blocked import BlockedTensor as BlockedTensor
from compss_train.data.blocked import shuffle as shuffle
from compss_train.data.files import FileDataset as FileDataset
from compss_train.data.samples import Samples as Samples
from compss_train.data.writing import write_files as write_files
