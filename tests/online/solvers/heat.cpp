// The same rod in C++, in two files that both include the header: heat TEMPERATURE STEPS CELLS
#include <compss_train.h>
#include <cstdlib>
#include <vector>

void send(int step, const std::vector<double> &temperature, const std::vector<double> &flux);

int main(int, char **argv)
{
    const std::size_t n = std::strtoul(argv[3], nullptr, 10);
    std::vector<double> u(n + 2), next(n + 2), flux(n + 2);

    u[0] = next[0] = std::atof(argv[1]);
    compss_train_init("temperature", n);
    compss_train_init("flux", n);
    for (int t = 0; t < std::atoi(argv[2]); t++) {
        for (std::size_t i = 1; i <= n; i++) {
            flux[i] = u[i - 1] - u[i];
            next[i] = u[i] + 0.25 * ((u[i - 1] - 2 * u[i]) + u[i + 1]);
        }
        u = next;
        send(t, u, flux);
    }
    compss_train_finalize();
}
