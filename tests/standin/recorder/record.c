// Objects, text, the record file, and what happens to calls that are not implemented.
#include "recorder.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(struct object *) every_object;

void *standin_new(size_t size, uint32_t tag)
{
    struct object *object = calloc(1, size);
    if (!object)
        abort();
    object->tag = tag;
    atomic_store(&object->alive, 1);
    object->next = atomic_load(&every_object);
    while (!atomic_compare_exchange_weak(&every_object, &object->next, object))
        ;
    return object;
}

bool standin_is(const void *handle, uint32_t tag)
{
    const struct object *object = handle;
    return object && object->tag == tag && atomic_load_explicit(&object->alive, memory_order_relaxed);
}

void standin_end(void *handle)
{
    atomic_store(&((struct object *)handle)->alive, 0);
}

void *standin_grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    *capacity = *capacity ? *capacity * 2 : 8;
    void *more = realloc(items, *capacity * size);
    if (!more)
        abort();
    return more;
}

// --- text -----------------------------------------------------------------------------------------

void text_begin(struct text *text)
{
    text->at = text->small;
    text->room = sizeof text->small;
    text->used = 0;
}

static void text_room(struct text *text, size_t more)
{
    if (text->used + more < text->room)
        return;
    text->room = (text->used + more) * 2;
    char *larger = malloc(text->room);
    if (!larger)
        abort();
    memcpy(larger, text->at, text->used);
    if (text->at != text->small)
        free(text->at);
    text->at = larger;
}

static void text_format(struct text *text, const char *format, va_list values)
{
    va_list again;
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    text_room(text, (size_t)length + 2);
    text->used += (size_t)vsnprintf(text->at + text->used, (size_t)length + 1, format, values);
}

void text_add(struct text *text, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    text_format(text, format, values);
    va_end(values);
}

void text_name(struct text *text, const char *name)
{
    text_add(text, "\"");
    for (const unsigned char *at = (const unsigned char *)name; *at; at++)
        if (*at == '"' || *at == '\\')
            text_add(text, "\\%c", *at);
        else if (*at < 0x20 || *at > 0x7e)
            text_add(text, "\\u%04x", *at);
        else
            text_add(text, "%c", *at);
    text_add(text, "\"");
}

void text_hex(struct text *text, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        text_add(text, "%02x", at[i]);
}

uint64_t standin_digest(uint64_t digest, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;  // FNV-1a, 64 bits
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ at[i]) * 0x100000001b3ull;
    return digest;
}

// --- the record -----------------------------------------------------------------------------------

static int record_file = -1;
static pthread_once_t record_once = PTHREAD_ONCE_INIT;

static void open_record(void)
{
    const char *path = getenv("MAKEWAY_STANDIN_RECORD");
    if (!path || !*path || !strcmp(path, "off"))
        return;
    record_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (record_file < 0)
        standin_say("cannot write the record %s", path);
}

bool standin_recording(void)
{
    pthread_once(&record_once, open_record);
    return record_file >= 0;
}

void text_end(struct text *text)
{
    text_room(text, 1);
    text->at[text->used++] = '\n';
    if (record_file >= 0 && write(record_file, text->at, text->used) != (ssize_t)text->used)
        standin_say("a record was cut short");
    if (text->at != text->small)
        free(text->at);
}

void standin_record(const char *format, ...)
{
    if (!standin_recording())
        return;
    struct text text;
    text_begin(&text);
    va_list values;
    va_start(values, format);
    text_format(&text, format, values);
    va_end(values);
    text_end(&text);
}

void standin_say(const char *format, ...)
{
    char line[512] = "stand-in driver: ";
    size_t used = strlen(line);
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line + used, sizeof line - used - 1, format, values);
    va_end(values);
    used += (size_t)length < sizeof line - used - 1 ? (size_t)length : sizeof line - used - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}

#define NOT_SUPPORTED 801  // CUDA_ERROR_NOT_SUPPORTED and hipErrorNotSupported

int standin_unknown(const char *call)
{
    standin_say("%s is not implemented here", call);
    standin_record("{\"unknown\": \"%s\"}", call);
    const char *mode = getenv("MAKEWAY_STANDIN_UNKNOWN");
    if (!mode || strcmp(mode, "error"))
        abort();
    return NOT_SUPPORTED;
}
