/* A solver that does something wrong at time step 3 of 6: faulty WHAT FLAG; once, if FLAG is the name of a file.
 *
 * With MPI its last rank does it, in most cases. */
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <compss_train.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

static int is(const char *what, const char *other)
{
    return strcmp(what, other) == 0;
}

int main(int argc, char **argv)
{
    const char *what = argv[1], *flag = argc > 2 ? argv[2] : "";
    double u[4], v[2] = {0, 0};
    int rank = 0, ranks = 1, step, i, done;

#ifdef WITH_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#endif
    if (is(what, "silent"))
        return 0;
    if (is(what, "order") && rank > 0) {
#ifdef WITH_MPI
        compss_train_init_mpi("v", 2, MPI_COMM_WORLD);
        compss_train_init_mpi("u", 4, MPI_COMM_WORLD);
#endif
    }
#ifdef WITH_MPI
    compss_train_init_mpi("u", 4, MPI_COMM_WORLD);
    compss_train_init_mpi("v", 2, MPI_COMM_WORLD);
#else
    compss_train_init("u", 4);
    compss_train_init("v", 2);
#endif
    for (step = 0; step < 6; step++) {
        done = flag[0] == '\0' || access(flag, F_OK) != 0;
        if (step == 3 && done && rank == ranks - 1) {
            if (flag[0] != '\0')
                close(open(flag, O_CREAT | O_WRONLY, 0600));
            fprintf(stderr, "this goes wrong\n");
            if (is(what, "killed"))
                raise(SIGKILL);
            if (is(what, "segfault"))
                raise(SIGSEGV);
            if (is(what, "exits"))
                exit(3);
            if (is(what, "early"))
                break;
            if (is(what, "leaves"))
                exit(0);
            if (is(what, "length"))
                compss_train_init("u", 3);
            if (is(what, "new"))
                compss_train_init("w", 3);
            if (is(what, "unknown"))
                compss_train_send("w", u);
            if (is(what, "twice"))
                compss_train_send("u", u);
            if (is(what, "finishes"))
                compss_train_finalize();
            if (is(what, "finishes"))
                break;
            if (is(what, "disconnects"))
                close(compss_train_state.descriptor);
            if (is(what, "hangs") || is(what, "disconnects"))
                for (;;)
                    pause();
        }
        for (i = 0; i < 4; i++)
            u[i] = is(what, "nan") && step == 3 && i == 2 ? NAN : 10 * rank + step;
        compss_train_send(is(what, "other") && step == 3 && rank ? "v" : "u", u);
        if (is(what, "half") && step == 5)
            break;
        compss_train_send("v", v);
    }
    compss_train_finalize();
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return is(what, "late") ? 4 : 0;
}
