/* What compss_train.f90, melissa_api.f90 and link lines need: compile it with cc, or with mpicc where ranks hold parts.
 *
 * `compss-train headers --build DIR` makes a library of it. COMPSS_TRAIN_NO_MPI leaves MPI out where cc finds mpi.h.
 */
#if defined(__has_include) && !defined(COMPSS_TRAIN_NO_MPI)
#if __has_include(<mpi.h>)
#define COMPSS_TRAIN_MPI
#endif
#endif

#ifdef COMPSS_TRAIN_MPI
#include "melissa_api.h"
#else
#include "compss_train.h"
#endif

/* compss_train_init of the Fortran module: comm is a handle of Fortran, NULL without MPI. */
void compss_train_init_f(const char *field, size_t count, const int *comm);

void compss_train_init_f(const char *field, size_t count, const int *comm)
{
    if (comm == NULL)
        compss_train_init(field, count);
    else
#ifdef COMPSS_TRAIN_MPI
        compss_train_init_mpi(field, count, MPI_Comm_f2c((MPI_Fint)*comm));
#else
        compss_train_fail("the field ", field, " has MPI ranks: compile libcompss_train.c with mpicc");
#endif
}
