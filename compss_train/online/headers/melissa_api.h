/* melissa_api.h: Melissa's functions for solvers, in C and C++ with MPI, on top of compss_train.h.
 *
 * A solver that is instrumented for Melissa is compiled with this header instead, and its link line loses Melissa's
 * library (or takes the one that `compss-train headers --build DIR` makes). Nothing else changes.
 */
#ifndef MELISSA_API_H
#define MELISSA_API_H

#include <mpi.h>

#include "compss_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Once a field, on all ranks of the communicator: each says how many doubles it holds. */
void melissa_init(const char *field_name, const int local_vect_size, MPI_Comm mpi_communicator);
/* Once a time step and field, on all ranks: the parts are put together in the order of ranks. */
void melissa_send(const char *field_name, const double *values);
/* The same with a text in JSON, which the fit gets as it is. */
void melissa_send_with_metadata(const char *field_name, const double *values, const char *json);
/* At the end, before MPI_Finalize. */
void melissa_finalize(void);
/* melissa_init of melissa_api.f90, whose arguments are references. */
void melissa_init_f(const char *field_name, const int *local_vect_size, const MPI_Fint *mpi_communicator);

COMPSS_TRAIN_WEAK void melissa_init(const char *field_name, const int local_vect_size, MPI_Comm mpi_communicator)
{
    if (local_vect_size < 0)
        compss_train_fail("the field ", field_name, " has a negative number of values on a rank");
    compss_train_init_mpi(field_name, (size_t)local_vect_size, mpi_communicator);
}

COMPSS_TRAIN_WEAK void melissa_init_f(const char *field_name, const int *local_vect_size,
                                      const MPI_Fint *mpi_communicator)
{
    melissa_init(field_name, *local_vect_size, MPI_Comm_f2c(*mpi_communicator));
}

COMPSS_TRAIN_WEAK void melissa_send(const char *field_name, const double *values)
{
    compss_train_send(field_name, values);
}

COMPSS_TRAIN_WEAK void melissa_send_with_metadata(const char *field_name, const double *values, const char *json)
{
    compss_train_send_with_metadata(field_name, values, json);
}

COMPSS_TRAIN_WEAK void melissa_finalize(void)
{
    compss_train_finalize();
}

#ifdef __cplusplus
}
#endif
#endif /* MELISSA_API_H */
