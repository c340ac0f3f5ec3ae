/* The least that a server can do with a digest: wake up, read it, copy it to where its node's rows live.
 * Prints its port, then, when its standard input ends, how many digests it took. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, EVENTS = 256 };

struct line {
    int socket;
    uint32_t held;
    char *row;
    char buffer[BUFFER];
};

static uint64_t taken;

static int drain(struct line *line) {
    ssize_t got = recv(line->socket, line->buffer + line->held, BUFFER - line->held, MSG_DONTWAIT);
    if (got <= 0) return got == 0 ? -1 : 0;
    line->held += (uint32_t)got;
    uint32_t at = 0;
    while (line->held - at >= 4) {
        uint32_t length;
        memcpy(&length, line->buffer + at, 4);
        if (length > BUFFER - 4) return -1;
        if (line->held - at < 4 + length) break;
        memcpy(line->row, line->buffer + at + 4, length);
        at += 4 + length;
        taken++;
    }
    memmove(line->buffer, line->buffer + at, line->held - at);
    line->held -= at;
    return 0;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int door = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    if (bind(door, (struct sockaddr *)&address, size) || listen(door, 4096)) return 1;
    getsockname(door, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    epoll_ctl(poll, EPOLL_CTL_ADD, door, &event);
    struct line end = {.socket = 0};
    event.data.ptr = &end;
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &event);
    for (;;) {
        int count = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct line *line = events[i].data.ptr;
            if (line == &end) {
                printf("%llu\n", (unsigned long long)taken);
                return 0;
            }
            if (line == NULL) {
                line = malloc(sizeof *line);
                line->row = malloc(BUFFER);
                line->held = 0;
                line->socket = accept(door, NULL, NULL);
                event.data.ptr = line;
                epoll_ctl(poll, EPOLL_CTL_ADD, line->socket, &event);
            } else if (drain(line)) {
                close(line->socket);
                free(line->row);
                free(line);
            }
        }
    }
}
