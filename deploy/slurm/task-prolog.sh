#!/bin/sh
# TaskProlog of slurm.conf(5): gives the tasks of all jobs the variables of ncclwatch that a file of the site holds.
#
#     TaskProlog=/etc/slurm/ncclwatch-task-prolog.sh
#
# The file has lines such as NCCLWATCH_SERVER=https://head:8470. Variables that a job has set itself are left alone.
file="${NCCLWATCH_SITE_ENV:-/etc/ncclwatch/job.env}"
[ -r "$file" ] || exit 0
while IFS='=' read -r name value; do
  case "$name" in
  NCCLWATCH_*[!A-Z_]*) ;;
  NCCLWATCH_?*)
    if ! printenv "$name" > /dev/null; then
      printf 'export %s=%s\n' "$name" "$value"
    fi
    ;;
  esac
done < "$file"
