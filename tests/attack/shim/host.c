/* A program that loads a plug-in with symbols of its own (RTLD_LOCAL), as Python does, and calls its main. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    void *plugin = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    int (*plugin_main)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "plugin_main") : NULL;
    if (!plugin_main) {
        fprintf(stderr, "%s\n", dlerror());
        return 99;
    }
    return plugin_main(count - 1, words + 1);
}
