/* A rod that is heated at its left end, as a solver for Melissa: heat TEMPERATURE STEPS CELLS, on any number of ranks. */
#include <melissa_api.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size, left, right, first, n, i, t;
    double *u, *next, *flux;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    left = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    first = atoi(argv[3]) * rank / size;
    n = atoi(argv[3]) * (rank + 1) / size - first;
    u = (double *)calloc((size_t)n + 2, sizeof *u);
    next = (double *)calloc((size_t)n + 2, sizeof *next);
    flux = (double *)calloc((size_t)n + 2, sizeof *flux);
    if (rank == 0)
        u[0] = atof(argv[1]);
    melissa_init("temperature", n, MPI_COMM_WORLD);
    melissa_init("flux", n, MPI_COMM_WORLD);
    for (t = 0; t < atoi(argv[2]); t++) {
        MPI_Sendrecv(u + 1, 1, MPI_DOUBLE, left, 0, u + n + 1, 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(u + n, 1, MPI_DOUBLE, right, 0, u, 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (i = 1; i <= n; i++) {
            flux[i] = u[i - 1] - u[i];
            next[i] = u[i] + 0.25 * ((u[i - 1] - 2 * u[i]) + u[i + 1]);
        }
        memcpy(u + 1, next + 1, (size_t)n * sizeof *u);
        melissa_send("temperature", u + 1);
        melissa_send_with_metadata("flux", flux + 1, t % 2 ? "" : "{\"even\": true}");
    }
    melissa_finalize();
    MPI_Finalize();
    return 0;
}
