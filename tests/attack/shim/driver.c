/* The scripted driver, and two things more: it refuses launch attributes that are not there, as a real one does, and
 * loads modules from files. */
#define cuLaunchKernelEx scripted_launch_ex
#include "../../preload/driver.c"
#undef cuLaunchKernelEx

mw_result cuLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra) {
    if (config->attribute_count && !config->attributes)
        return MW_INVALID_VALUE;
    return scripted_launch_ex(config, function, parameters, extra);
}

mw_result cuModuleLoad(void **module, const char *path) {
    *module = (void *)path;
    return MW_SUCCESS;
}
