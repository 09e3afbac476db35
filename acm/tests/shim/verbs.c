/* A fake InfiniBand device: enough for librdmacm to query a resolver.
 *
 * Preloaded, this replaces the four functions of libibverbs with which librdmacm looks for devices. The
 * device is never opened; only its node type is read. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* The first fields of the library's own description; zeros behind them. */
static struct {
	void *operations[2];
	int node_type;
	int transport_type;
	char rest[4096];
} device = { .node_type = 1 };

void **ibv_get_device_list(int *count)
{
	void **list = calloc(2, sizeof(*list));

	if (list)
		list[0] = &device;
	if (count)
		*count = list ? 1 : 0;
	return list;
}

void ibv_free_device_list(void **list)
{
	free(list);
}

uint64_t ibv_get_device_guid(void *of)
{
	(void) of;
	return 0x0100000000000002u;
}

int ibv_get_device_index(void *of)
{
	(void) of;
	return 1;
}
