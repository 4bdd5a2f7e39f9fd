/* Sends a ready array, a part of it from each rank: ready_solver STEPS SIZE */
#include <mpi.h>
#include <compss_train.h>

int main(int argc, char **argv)
{
    int rank, size, step;
    size_t count, i;
    double *values;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    count = (size_t)atol(argv[2]) / (size_t)size;
    values = (double *)calloc(count, sizeof *values);
    for (i = 0; i < count; i++)
        values[i] = (double)i;
    compss_train_init_mpi("u", count, MPI_COMM_WORLD);
    for (step = 0; step < atoi(argv[1]); step++)
        compss_train_send("u", values);
    compss_train_finalize();
    MPI_Finalize();
    return 0;
}
