// What both stand-ins share: objects behind handles, the device file, records and refusals.
#ifndef RECORDER_H
#define RECORDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// --- objects: a handle is a pointer to one; they are never freed, so a dead handle is recognised ---

struct object {
    uint32_t tag;
    atomic_int alive;
    struct object *next;  // keeps every object reachable
};

void *standin_new(size_t size, uint32_t tag);
bool standin_is(const void *handle, uint32_t tag);
void standin_end(void *handle);
void *standin_grow(void *items, size_t count, size_t *capacity, size_t size);

// --- the device file ------------------------------------------------------------------------------

long long standin_number(const char *key, long long absent);
int standin_needed(const char *key);  // aborts when the file does not give it
bool standin_has(const char *key);
const char *standin_text(const char *key, const char *absent);
bool standin_read_device(const char *path);

// --- records --------------------------------------------------------------------------------------

struct text {
    char *at;
    size_t used, room;
    char small[1024];
};

void text_begin(struct text *text);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_name(struct text *text, const char *name);
void text_hex(struct text *text, const void *bytes, size_t count);
void text_end(struct text *text);  // writes the line in one piece and lets go of it

bool standin_recording(void);
void standin_record(const char *format, ...) __attribute__((format(printf, 1, 2)));
void standin_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int standin_unknown(const char *call);  // aborts, or says that the call is not supported
uint64_t standin_digest(uint64_t digest, const void *bytes, size_t count);
#define STANDIN_DIGEST_BEGIN 0xcbf29ce484222325ull

// --- refusals that a test asks for ----------------------------------------------------------------

bool standin_refuses_launch(unsigned smem_bytes);
bool standin_refuses_node(unsigned smem_bytes);
bool standin_refuses(const char *what);

#endif
