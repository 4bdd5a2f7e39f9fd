"""The environment variables by which the program of a job knows its fit and its input."""

ADDRESS_VARIABLE = "COMPSS_TRAIN_ADDRESS"
TOKEN_VARIABLE = "COMPSS_TRAIN_TOKEN"
NAME_VARIABLE = "COMPSS_TRAIN_NAME"
INPUT_VARIABLE = "COMPSS_TRAIN_INPUT"
