from compss_train.online.sender import SampleSender as SampleSender
