// The other file of heat.cpp.
#include <compss_train.h>
#include <vector>

void send(int step, const std::vector<double> &temperature, const std::vector<double> &flux);

void send(int step, const std::vector<double> &temperature, const std::vector<double> &flux)
{
    compss_train_send("temperature", temperature.data() + 1);
    compss_train_send_with_metadata("flux", flux.data() + 1, step % 2 ? nullptr : "{\"even\": true}");
}
