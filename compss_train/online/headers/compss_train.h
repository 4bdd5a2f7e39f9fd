/* compss_train.h: send the fields of a solver to a fit that trains on them while the solver runs.
 *
 * One header for C (from C99 on) and C++ (from C++11 on), without a library. Several files of a program may include
 * it: its functions are weak, and the linker keeps one of each.
 *
 *     compss_train_init("temperature", n);             once a field: how many doubles it has
 *     compss_train_send("temperature", values);        once a time step and field
 *     compss_train_finalize();                         at the end; a solver that leaves without it has failed
 *
 * Where the ranks of an MPI program hold parts of a field, include <mpi.h> first, call
 * compss_train_init_mpi(field, n, comm) instead, with the numbers that each rank holds, and call the other functions
 * on every rank of comm: the parts are put together in the order of ranks. All fields have the same ranks. Call
 * compss_train_finalize() before MPI_Finalize().
 *
 * A time step is complete when each field was sent once. Functions wait while the fit does not keep up.
 *
 * Rank 0 connects to the address in the environment variable COMPSS_TRAIN_SOLVER, which the fit sets (launchers that
 * start ranks on other nodes must export it, as mpirun -x COMPSS_TRAIN_SOLVER does). With the value "none" nothing
 * is sent, to run a solver by itself. Errors end the program, all its ranks, with one line on standard error.
 */
#ifndef COMPSS_TRAIN_H
#define COMPSS_TRAIN_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define COMPSS_TRAIN_PROTOCOL 1 /* The version of the messages below. */

#if defined(__GNUC__) || defined(__clang__)
#define COMPSS_TRAIN_WEAK __attribute__((weak))
#else
#define COMPSS_TRAIN_WEAK /* Include the header in one file only. */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Declare a field of so many doubles. */
void compss_train_init(const char *field, size_t count);
/* Send the values of a field at the next time step. */
void compss_train_send(const char *field, const double *values);
/* The same with a text, such as JSON, that the fit gets with the values; the text of rank 0 counts. */
void compss_train_send_with_metadata(const char *field, const double *values, const char *text);
/* Say that all time steps were sent, and disconnect. */
void compss_train_finalize(void);

/* What follows is private.
 *
 * The first thing sent is a line of ASCII: "compss_train PROTOCOL ORDER TOKEN", with the byte order, little or big, and
 * "-" where no token is needed. Messages follow, each of 16 bytes (kind and number of the field, 32 bits each, and
 * the length of the rest in bytes, 64 bits), and the rest. The fit answers nothing.
 */
enum {
    COMPSS_TRAIN_FIELD = 1,  /* the name of a field; fields are numbered from 0 */
    COMPSS_TRAIN_VALUES = 2, /* its values at a time step, in double precision */
    COMPSS_TRAIN_TEXT = 3,   /* the text that belongs to the values that follow */
    COMPSS_TRAIN_END = 4     /* all was sent */
};
#define COMPSS_TRAIN_LEAVING UINT32_MAX /* the key of compss_train_finalize */

struct compss_train_field {
    struct compss_train_field *next;
    char *name;
    uint32_t number;
    uint32_t key;   /* follows from the name, so that ranks can compare it */
    size_t count;   /* of this rank */
    size_t total;   /* of all ranks; on rank 0 */
    int *counts;    /* of each rank; on rank 0 */
    double *whole;  /* the values of all ranks; on other ranks than 0 copies of their own, on their way to rank 0 */
    void *requests; /* of MPI, one for each copy */
    int copies;     /* how many there are */
    int turn;       /* the one to use next */
};

struct compss_train_state {
    int started;                       /* 1 while connected; 2 where nothing is sent */
    int descriptor;                    /* of the connection; on rank 0 */
    int rank;                          /* 0 without MPI */
    struct compss_train_field *fields; /* the last one first */
    void *ranks;                       /* the communicator, with which the functions below are set */
    const double *(*gather)(struct compss_train_field *field, const double *values);
    void (*leave)(void);
    void (*end)(int failed);
};

COMPSS_TRAIN_WEAK struct compss_train_state compss_train_state;

COMPSS_TRAIN_WEAK void compss_train_fail(const char *what, const char *which, const char *advice)
{
    fprintf(stderr, "compss_train: %s%s%s\n", what, which, advice);
    fflush(stderr);
    if (compss_train_state.end != NULL)
        compss_train_state.end(1);
    exit(EXIT_FAILURE);
}

COMPSS_TRAIN_WEAK void *compss_train_allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL)
        compss_train_fail("there is not enough memory for a field", "", "");
    return memory;
}

COMPSS_TRAIN_WEAK void compss_train_write(const void *first, size_t first_size, const void *second, size_t second_size)
{
#ifdef MSG_NOSIGNAL
    const int flags = MSG_NOSIGNAL;
#else
    const int flags = 0;
#endif
    struct iovec parts[2];
    struct msghdr message;
    ssize_t sent;

    while (first_size + second_size > 0) {
        parts[0].iov_base = (void *)(uintptr_t)first;
        parts[0].iov_len = first_size;
        parts[1].iov_base = (void *)(uintptr_t)second;
        parts[1].iov_len = second_size;
        memset(&message, 0, sizeof message);
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        sent = sendmsg(compss_train_state.descriptor, &message, flags);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            compss_train_fail("the fit has closed the connection: ", strerror(errno), "");
        if ((size_t)sent < first_size) {
            first = (const char *)first + sent;
            first_size -= (size_t)sent;
        } else {
            second = (const char *)second + ((size_t)sent - first_size);
            second_size -= (size_t)sent - first_size;
            first_size = 0;
        }
    }
}

COMPSS_TRAIN_WEAK void compss_train_message(uint32_t kind, uint32_t number, const void *rest, size_t size)
{
    unsigned char header[16];
    const uint64_t length = size;

    memcpy(header, &kind, 4);
    memcpy(header + 4, &number, 4);
    memcpy(header + 8, &length, 8);
    compss_train_write(header, sizeof header, rest, size);
}

COMPSS_TRAIN_WEAK void compss_train_connect(void)
{
    const char *address = getenv("COMPSS_TRAIN_SOLVER");
    const uint16_t one = 1;
    const int ahead = 1 << 22; /* bytes that may wait; the system may allow fewer */
    char host[64], token[128] = "-", hello[256];
    unsigned port;
    struct sockaddr_un file;
    struct sockaddr_in tcp;
    int failed;

    if (address == NULL || address[0] == '\0') {
        compss_train_fail("COMPSS_TRAIN_SOLVER is not set: start this solver with compss_train's Solver, export the "
                          "variable to all ranks, or set it to none", "", "");
        return;
    }
    if (strcmp(address, "none") == 0) {
        compss_train_state.started = 2;
        return;
    }
    memset(&file, 0, sizeof file);
    memset(&tcp, 0, sizeof tcp);
    if (address[0] == '/' && strlen(address) < sizeof file.sun_path) {
        file.sun_family = AF_UNIX;
        strcpy(file.sun_path, address);
        compss_train_state.descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
        setsockopt(compss_train_state.descriptor, SOL_SOCKET, SO_SNDBUF, &ahead, sizeof ahead);
        failed = connect(compss_train_state.descriptor, (struct sockaddr *)&file, sizeof file);
    } else if (sscanf(address, "tcp://%63[^:]:%5u/%127s", host, &port, token) == 3
               && inet_pton(AF_INET, host, &tcp.sin_addr) == 1) {
        tcp.sin_family = AF_INET;
        tcp.sin_port = htons((uint16_t)port);
        compss_train_state.descriptor = socket(AF_INET, SOCK_STREAM, 0);
        failed = connect(compss_train_state.descriptor, (struct sockaddr *)&tcp, sizeof tcp);
    } else {
        compss_train_fail("COMPSS_TRAIN_SOLVER is no address that a fit has set", "", "");
        return;
    }
    if (failed)
        compss_train_fail("cannot connect to the fit: ", strerror(errno),
                          "; a fit accepts one connection of a run (of MPI ranks, use compss_train_init_mpi)");
    compss_train_state.started = 1;
    snprintf(hello, sizeof hello, "compss_train %d %s %s\n", COMPSS_TRAIN_PROTOCOL,
            *(const unsigned char *)&one == 1 ? "little" : "big", token);
    compss_train_write(hello, strlen(hello), NULL, 0);
}

COMPSS_TRAIN_WEAK struct compss_train_field *compss_train_find(const char *name)
{
    struct compss_train_field *field = compss_train_state.fields;

    while (field != NULL && strcmp(field->name, name) != 0)
        field = field->next;
    return field;
}

/* Add a field, unless it was declared before with the same length, and return it. */
COMPSS_TRAIN_WEAK struct compss_train_field *compss_train_add(const char *name, size_t count)
{
    struct compss_train_field *field = compss_train_find(name);
    size_t each;

    if (field != NULL) {
        if (field->count != count)
            compss_train_fail("the field ", name, " was declared before with another length");
        return field;
    }
    field = (struct compss_train_field *)compss_train_allocate(1, sizeof *field);
    field->name = (char *)compss_train_allocate(strlen(name) + 1, 1);
    strcpy(field->name, name);
    for (each = 0; name[each] != '\0'; each++)
        field->key = 31 * field->key + (unsigned char)name[each];
    field->number = compss_train_state.fields != NULL ? compss_train_state.fields->number + 1 : 0;
    field->count = field->total = count;
    field->next = compss_train_state.fields;
    compss_train_state.fields = field;
    if (!compss_train_state.started && compss_train_state.rank == 0)
        compss_train_connect();
    if (compss_train_state.started == 1)
        compss_train_message(COMPSS_TRAIN_FIELD, field->number, name, strlen(name));
    return field;
}

COMPSS_TRAIN_WEAK void compss_train_init(const char *field, size_t count)
{
    if (compss_train_state.gather != NULL)
        compss_train_fail("the field ", field, ": other fields have parts on MPI ranks; use compss_train_init_mpi");
    compss_train_add(field, count);
}

COMPSS_TRAIN_WEAK void compss_train_send_with_metadata(const char *field, const double *values, const char *text)
{
    struct compss_train_field *found = compss_train_find(field);

    if (found == NULL) {
        compss_train_fail("the field ", field, " was not declared by compss_train_init");
        return;
    }
    if (compss_train_state.gather != NULL)
        values = compss_train_state.gather(found, values);
    if (compss_train_state.started != 1) /* another rank than 0, or nothing is sent */
        return;
    if (text != NULL && text[0] != '\0')
        compss_train_message(COMPSS_TRAIN_TEXT, found->number, text, strlen(text));
    compss_train_message(COMPSS_TRAIN_VALUES, found->number, values, found->total * sizeof *values);
}

COMPSS_TRAIN_WEAK void compss_train_send(const char *field, const double *values)
{
    compss_train_send_with_metadata(field, values, NULL);
}

COMPSS_TRAIN_WEAK void compss_train_finalize(void)
{
    struct compss_train_field *field;

    if (compss_train_state.leave != NULL)
        compss_train_state.leave();
    if (compss_train_state.started == 1) {
        compss_train_message(COMPSS_TRAIN_END, 0, NULL, 0);
        close(compss_train_state.descriptor);
    }
    while ((field = compss_train_state.fields) != NULL) {
        compss_train_state.fields = field->next;
        free(field->requests);
        free(field->counts);
        free(field->whole);
        free(field->name);
        free(field);
    }
    if (compss_train_state.end != NULL)
        compss_train_state.end(0);
    memset(&compss_train_state, 0, sizeof compss_train_state);
}

#ifdef __cplusplus
}
#endif
#endif /* COMPSS_TRAIN_H */

/* The part for MPI, where <mpi.h> was included before, or COMPSS_TRAIN_MPI is defined. */
#if (defined(MPI_VERSION) || defined(COMPSS_TRAIN_MPI)) && !defined(COMPSS_TRAIN_WITH_MPI)
#define COMPSS_TRAIN_WITH_MPI

#define COMPSS_TRAIN_AHEAD 131072 /* How many numbers of a field a rank may be ahead of rank 0. */
#define COMPSS_TRAIN_COPIES 64    /* The same in time steps: on few cores rank 0 may have no turn for milliseconds. */

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <sys/select.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Declare a field of which this rank of the communicator holds so many doubles. */
void compss_train_init_mpi(const char *field, size_t count, MPI_Comm comm);

COMPSS_TRAIN_WEAK void compss_train_mpi_end(int failed)
{
    MPI_Comm *comm = (MPI_Comm *)compss_train_state.ranks;

    if (failed)
        MPI_Abort(*comm, EXIT_FAILURE);
    MPI_Comm_free(comm);
    free(comm);
}

COMPSS_TRAIN_WEAK const char *compss_train_mpi_name(uint32_t key)
{
    const struct compss_train_field *field = compss_train_state.fields;

    while (field != NULL && field->key != key)
        field = field->next;
    if (field == NULL)
        return key == COMPSS_TRAIN_LEAVING ? "nothing more (compss_train_finalize)" : "a field of another name";
    return field->name;
}

/* Wait a moment for other ranks: soon without taking a processor from what is waited for. */
COMPSS_TRAIN_WEAK void compss_train_mpi_pause(int tries)
{
    struct timeval pause;

    pause.tv_sec = 0;
    pause.tv_usec = 50;
    if (tries < 50)
        sched_yield();
    else
        select(0, NULL, NULL, NULL, &pause);
}

/* Start to send a part, with its key behind it, to rank 0; it completes when rank 0 receives it. */
COMPSS_TRAIN_WEAK void compss_train_mpi_start(double *part, size_t count, uint32_t key, MPI_Request *request)
{
    part[count] = key;
    MPI_Issend(part, (int)count + 1, MPI_DOUBLE, 0, 0, *(MPI_Comm *)compss_train_state.ranks, request);
}

COMPSS_TRAIN_WEAK void compss_train_mpi_finish(MPI_Request *request)
{
    int tries = 0, done = 0;

    for (MPI_Test(request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(request, &done, MPI_STATUS_IGNORE))
        compss_train_mpi_pause(tries < 50 ? tries++ : tries);
}

/* On rank 0: ranks that send other fields, or leave early, would mix fields up, or make the others wait for ever. */
COMPSS_TRAIN_WEAK void compss_train_mpi_agree(uint32_t key, int rank, uint32_t other)
{
    char text[512];

    if (other == key)
        return;
    snprintf(text, sizeof text, "rank 0 sends %.200s, but rank %d sends %.200s", compss_train_mpi_name(key), rank,
             compss_train_mpi_name(other));
    compss_train_fail(text, "", "; all ranks send the same fields in the same order");
}

/* On rank 0: receive the part of a rank, and its key, for which there is room behind it. */
COMPSS_TRAIN_WEAK void compss_train_mpi_receive(int rank, double *part, int count, uint32_t key)
{
    const MPI_Comm comm = *(MPI_Comm *)compss_train_state.ranks;
    int tries = 0, there = 0, size;
    MPI_Status status;
    double *other;

    for (MPI_Iprobe(rank, 0, comm, &there, &status); !there; MPI_Iprobe(rank, 0, comm, &there, &status))
        compss_train_mpi_pause(tries < 50 ? tries++ : tries);
    MPI_Get_count(&status, MPI_DOUBLE, &size);
    other = size == count + 1 ? part : (double *)compss_train_allocate((size_t)size, sizeof *other);
    MPI_Recv(other, size, MPI_DOUBLE, rank, 0, comm, MPI_STATUS_IGNORE);
    compss_train_mpi_agree(key, rank, (uint32_t)other[size - 1]);
}

/* Other ranks than 0 copy their part, and go on while it is sent: they may be some time steps ahead. */
COMPSS_TRAIN_WEAK const double *compss_train_mpi_gather(struct compss_train_field *field, const double *values)
{
    double *part = field->whole + (field->count + 1) * (size_t)field->turn;
    MPI_Request *request = (MPI_Request *)field->requests + field->turn;
    int rank, size;

    if (compss_train_state.rank != 0)
        compss_train_mpi_finish(request);
    if (field->count > 0)
        memcpy(part, values, field->count * sizeof *values);
    if (compss_train_state.rank != 0) {
        compss_train_mpi_start(part, field->count, field->key, request);
        field->turn = (field->turn + 1) % field->copies;
        return NULL;
    }
    MPI_Comm_size(*(MPI_Comm *)compss_train_state.ranks, &size);
    for (part += field->count, rank = 1; rank < size; part += field->counts[rank], rank++)
        compss_train_mpi_receive(rank, part, field->counts[rank], field->key);
    return field->whole;
}

COMPSS_TRAIN_WEAK void compss_train_mpi_leave(void)
{
    struct compss_train_field *field;
    MPI_Request request;
    double part[1];
    int i, size;

    if (compss_train_state.rank != 0) {
        compss_train_mpi_start(part, 0, COMPSS_TRAIN_LEAVING, &request);
        compss_train_mpi_finish(&request);
        for (field = compss_train_state.fields; field != NULL; field = field->next)
            for (i = 0; i < field->copies; i++)
                compss_train_mpi_finish((MPI_Request *)field->requests + i);
        return;
    }
    MPI_Comm_size(*(MPI_Comm *)compss_train_state.ranks, &size);
    for (i = 1; i < size; i++)
        compss_train_mpi_receive(i, part, 0, COMPSS_TRAIN_LEAVING);
}

COMPSS_TRAIN_WEAK void compss_train_init_mpi(const char *name, size_t count, MPI_Comm comm)
{
    struct compss_train_state *state = &compss_train_state;
    const int known = compss_train_find(name) != NULL;
    struct compss_train_field *field;
    uint32_t own[2], *all = NULL;
    int size, rank, same;

    if (state->ranks == NULL) {
        if (state->fields != NULL)
            compss_train_fail("the field ", name, ": other fields have no MPI ranks; use compss_train_init_mpi for all");
        state->ranks = compss_train_allocate(1, sizeof comm);
        MPI_Comm_dup(comm, (MPI_Comm *)state->ranks); /* so that no message is taken for one of the solver's */
        MPI_Comm_rank(comm, &state->rank);
        state->gather = compss_train_mpi_gather;
        state->leave = compss_train_mpi_leave;
        state->end = compss_train_mpi_end;
    }
    MPI_Comm_compare(comm, *(MPI_Comm *)state->ranks, &same);
    if (same != MPI_IDENT && same != MPI_CONGRUENT)
        compss_train_fail("the field ", name, " has other ranks than the first field; give the same communicator");
    if (count >= INT_MAX)
        compss_train_fail("the field ", name, " has too many values on a rank");
    field = compss_train_add(name, count);
    if (known)
        return;
    MPI_Comm_size(comm, &size);
    if (state->rank == 0) {
        field->counts = (int *)compss_train_allocate((size_t)size, sizeof *field->counts);
        all = (uint32_t *)compss_train_allocate(2 * (size_t)size, sizeof *all);
    }
    own[0] = field->key;
    own[1] = (uint32_t)count;
    MPI_Gather(own, 2, MPI_UINT32_T, all, 2, MPI_UINT32_T, 0, *(MPI_Comm *)state->ranks);
    for (field->total = 0, rank = 0; all != NULL && rank < size; rank++) {
        compss_train_mpi_agree(field->key, rank, all[2 * rank]);
        field->counts[rank] = (int)all[2 * rank + 1];
        field->total += (size_t)field->counts[rank];
    }
    free(all);
    if (state->rank == 0) {
        field->whole = (double *)compss_train_allocate(field->total + 1, sizeof *field->whole);
        return;
    }
    field->copies = (int)(COMPSS_TRAIN_AHEAD / (count + 1));
    field->copies = field->copies < 1 ? 1 : field->copies;
    field->copies = field->copies > COMPSS_TRAIN_COPIES ? COMPSS_TRAIN_COPIES : field->copies;
    field->whole = (double *)compss_train_allocate((size_t)field->copies * (count + 1), sizeof *field->whole);
    field->requests = compss_train_allocate((size_t)field->copies, sizeof(MPI_Request));
    for (rank = 0; rank < field->copies; rank++)
        ((MPI_Request *)field->requests)[rank] = MPI_REQUEST_NULL;
}

#ifdef __cplusplus
}
#endif
#endif /* COMPSS_TRAIN_WITH_MPI */
