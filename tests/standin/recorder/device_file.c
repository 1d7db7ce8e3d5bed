// The device file: key=value lines that tests write from a makeway Device.
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry { char key[48], value[160]; };
static struct entry entries[128];
static int entry_count;

static const char *find(const char *key)
{
    for (int i = 0; i < entry_count; i++)
        if (!strcmp(entries[i].key, key))
            return entries[i].value;
    return NULL;
}

const char *standin_text(const char *key, const char *absent)
{
    const char *value = find(key);
    return value ? value : absent;
}

bool standin_has(const char *key)
{
    return find(key) != NULL;
}

long long standin_number(const char *key, long long absent)
{
    const char *value = find(key);
    return value ? atoll(value) : absent;
}

int standin_needed(const char *key)
{
    if (!standin_has(key)) {
        standin_say("the device file has no '%s'", key);
        abort();
    }
    return (int)standin_number(key, 0);
}

bool standin_read_device(const char *path)
{
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        standin_say("no device: MAKEWAY_STANDIN_DEVICE is %s", path ? path : "not set");
        return false;
    }
    char line[256];
    while (entry_count < 128 && fgets(line, sizeof line, file))
        if (sscanf(line, "%47[^=]=%159[^\n]", entries[entry_count].key, entries[entry_count].value) == 2)
            entry_count++;
    fclose(file);
    return true;
}
