// A disk that keeps only what was flushed: after each flush of a file in $POWERCUT_FOLDER, the file as
// it is then is copied to $POWERCUT_KEPT; a flush of the folder makes its deletions last. What a power
// cut leaves is what lies there.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void forget(const char *folder, const char *kept) {
    char there[4096], copy[4096];
    struct dirent *one;
    DIR *copies = opendir(kept);
    while (copies && (one = readdir(copies))) {
        snprintf(there, sizeof there, "%s/%s", folder, one->d_name);
        snprintf(copy, sizeof copy, "%s/%s", kept, one->d_name);
        if (access(there, F_OK)) unlink(copy);
    }
    closedir(copies);
}

static void keep(int fd) {
    const char *folder = getenv("POWERCUT_FOLDER"), *kept = getenv("POWERCUT_KEPT");
    char link[64], path[4096], made[4096], part[4096], bytes[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder || !kept || length < 0) return;
    path[length] = 0;
    size_t start = strlen(folder);
    if (!strcmp(path, folder)) return forget(folder, kept);
    if (strncmp(path, folder, start) || path[start] != '/' || strchr(path + start + 1, '/')) return;
    snprintf(made, sizeof made, "%s/%s", kept, path + start + 1);
    snprintf(part, sizeof part, "%s.part", made);
    int to = open(part, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    off_t at = 0;
    ssize_t got;
    while ((got = pread(fd, bytes, sizeof bytes, at)) > 0 && write(to, bytes, got) == got) at += got;
    close(to);
    rename(part, made);
}

int fsync(int fd) {
    int done = (int)syscall(SYS_fsync, fd);
    if (!done) keep(fd);
    return done;
}

int fdatasync(int fd) {
    int done = (int)syscall(SYS_fdatasync, fd);
    if (!done) keep(fd);
    return done;
}
