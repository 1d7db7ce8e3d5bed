// Launch attributes: kept by number, checked where they limit a launch, and named in records.
#include "standin.h"

#include <string.h>

static const char *const names[CU_LAUNCH_ATTRIBUTE_MAX] = {
    [CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW] = "access_policy_window",
    [CU_LAUNCH_ATTRIBUTE_COOPERATIVE] = "cooperative",
    [CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION] = "cluster_dimension",
    [CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE] = "cluster_scheduling",
    [CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION] = "programmatic_stream_serialization",
    [CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT] = "programmatic_event",
    [CU_LAUNCH_ATTRIBUTE_PRIORITY] = "priority",
    [CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP] = "mem_sync_domain_map",
    [CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN] = "mem_sync_domain",
    [CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION] = "preferred_cluster_dimension",
    [CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT] = "launch_completion_event",
    [CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE] = "device_updatable_kernel_node",
    [CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = "preferred_shared_memory_carveout",
    [CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING] = "nvlink_util_centric_scheduling",
    [CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE] = "shared_memory_mode",
};

void attributes_add(struct attribute_set *set, CUlaunchAttributeID id, const CUlaunchAttributeValue *value)
{
    set->given |= 1ull << id;
    set->values[id] = *value;
}

CUresult attributes_read(struct attribute_set *set, const CUlaunchAttribute *list, unsigned count)
{
    set->given = 0;
    if (count && !list)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (list[i].id == CU_LAUNCH_ATTRIBUTE_IGNORE)
            continue;
        if (list[i].id < 0 || list[i].id >= CU_LAUNCH_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        if (list[i].id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
            return CUDA_ERROR_INVALID_VALUE;  // for streams only
        attributes_add(set, list[i].id, &list[i].value);
    }
    return CUDA_SUCCESS;
}

static void value_text(struct text *text, CUlaunchAttributeID id, const CUlaunchAttributeValue *value)
{
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        text_add(text, "[%u, %u, %u]", value->clusterDim.x, value->clusterDim.y, value->clusterDim.z);
        return;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        text_add(text, "[%d, %d]", value->programmaticEvent.event != NULL, value->programmaticEvent.flags);
        return;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        text_add(text, "\"");
        text_hex(text, value, sizeof *value);
        text_add(text, "\"");
        return;
    default:  // the rest are one int
        text_add(text, "%d", value->cooperative);
    }
}

void attributes_text(struct text *text, const struct attribute_set *set)
{
    const char *between = "";
    text_add(text, "{");
    for (int id = 1; set && id < CU_LAUNCH_ATTRIBUTE_MAX; id++) {
        if (!(set->given >> id & 1))
            continue;
        if (names[id])
            text_add(text, "%s\"%s\": ", between, names[id]);
        else
            text_add(text, "%s\"attribute_%d\": ", between, id);
        value_text(text, id, &set->values[id]);
        between = ", ";
    }
    text_add(text, "}");
}
