/* Sends the number of a sample at each of its time steps, in two parts: rank 0 the number, rank 1 its negative.
   counted FIRST STEPS MICROSECONDS */
#define _DEFAULT_SOURCE
#include <mpi.h>
#include <unistd.h>

#include <compss_train.h>

int main(int argc, char **argv) {
    int rank, step, first = argc > 1 ? atoi(argv[1]) : 0, steps = argc > 2 ? atoi(argv[2]) : 1;
    double number;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    compss_train_init_mpi("number", 1, MPI_COMM_WORLD);
    for (step = 0; step < steps; step++) {
        usleep(argc > 3 ? (useconds_t)atoi(argv[3]) : 0);
        number = rank ? -(first + step) : first + step;
        compss_train_send("number", &number);
    }
    compss_train_finalize();
    MPI_Finalize();
    return 0;
}
