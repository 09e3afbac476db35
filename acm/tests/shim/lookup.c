/* lookup DESTINATION [SOURCE|-] [FLAGS]: resolves an address with this machine's own librdmacm, and
 * prints what a program that connects would use.
 *
 * The types are those of rdma/rdma_cma.h, repeated here so that no headers need to be installed. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { PORT_SPACE_TCP = 0x0106 };

struct info {
	int flags, family, qp_type, port_space;
	socklen_t source_length, destination_length;
	struct sockaddr *source, *destination;
	char *source_name, *destination_name;
	size_t route_length;
	void *route;
	size_t connect_length;
	void *connect;
	struct info *next;
};

typedef int (*getaddrinfo_function)(const char *, const char *, const struct info *, struct info **);

static void show_address(const char *what, const struct sockaddr *address)
{
	char text[INET6_ADDRSTRLEN] = "none";

	if (address && address->sa_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *) address)->sin_addr, text, sizeof(text));
	else if (address && address->sa_family == AF_INET6)
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *) address)->sin6_addr, text, sizeof(text));
	printf("%s %s\n", what, text);
}

static void show_route(const struct info *info)
{
	const unsigned char *route = info->route;
	char text[INET6_ADDRSTRLEN];
	uint32_t flags;

	printf("route length %zu\n", info->route_length);
	if (info->route_length < 72)
		return;
	memcpy(&flags, route, sizeof(flags));
	printf("route flags 0x%x\n", flags);
	inet_ntop(AF_INET6, route + 8 + 8, text, sizeof(text));
	printf("route dgid %s\n", text);
	printf("route dlid %u\n", route[8 + 40] << 8 | route[8 + 41]);
}

int main(int count, char **arguments)
{
	struct info hints = { .port_space = PORT_SPACE_TCP }, *info = NULL;
	struct addrinfo numeric = { .ai_flags = AI_NUMERICHOST }, *source = NULL;
	void *library = dlopen("librdmacm.so.1", RTLD_NOW);
	getaddrinfo_function lookup;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	if (count < 2)
		return 4;
	if (count > 2 && strcmp(arguments[2], "-")) {
		if (getaddrinfo(arguments[2], NULL, &numeric, &source))
			return 4;
		hints.source = source->ai_addr;
		hints.source_length = source->ai_addrlen;
	}
	if (count > 3)
		hints.flags = atoi(arguments[3]);
	*(void **) &lookup = dlsym(library, "rdma_getaddrinfo");
	if (!lookup)
		return 3;
	if (lookup(arguments[1], "7174", &hints, &info)) {
		printf("failed: %s\n", strerror(errno));
		return 1;
	}
	show_route(info);
	show_address("source", info->source);
	show_address("destination", info->destination);
	return 0;
}
