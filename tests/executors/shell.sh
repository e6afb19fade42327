#!/bin/sh
# A batch system of one machine: each job is a process. Its state is in the folder DIR, one file or folder for each job.
#
#   shell.sh DIR submit JOB SCRIPT
#   shell.sh DIR list
#   shell.sh DIR cancel JOB
#
# Files that a test makes change what it does: DIR/refuse (no job is accepted), DIR/hold (jobs wait), DIR/dead (all jobs that
# run now count as lost; it is consumed by the next `list`), DIR/late (jobs are accepted, but the answer is lost), DIR/away (`list`
# has no answer), DIR/vanish (the folder of a job is away for two seconds from its submission on).
set -eu
dir=$1
mkdir -p "$dir/jobs"
case $2 in
submit)
    if [ -e "$dir/refuse" ]; then
        cat "$dir/refuse" >&2
        exit 1
    fi
    mkdir "$dir/jobs/$3"
    echo "$3" >>"$dir/submitted"
    [ ! -e "$dir/late" ] || { echo "$4" >"$dir/jobs/$3/waits"; exit 1; }
    if [ -e "$dir/vanish" ]; then
        folder=$(dirname "$4")
        mv "$folder" "$folder.away"
        setsid sh -c 'sleep 2; mv "$1.away" "$1"; exec sh "$2"' vanish "$folder" "$4" </dev/null >/dev/null 2>&1 &
        echo $! >"$dir/jobs/$3/pid"
        exit
    fi
    [ ! -e "$dir/hold" ] || { echo "$4" >"$dir/jobs/$3/waits"; exit; }
    setsid sh "$4" </dev/null >/dev/null 2>&1 &
    echo $! >"$dir/jobs/$3/pid"
    ;;
list)
    [ ! -e "$dir/away" ] || { echo "timed out" >&2; exit 1; }
    for job in "$dir"/jobs/*; do
        [ -d "$job" ] || continue
        if [ -e "$job/waits" ] && [ ! -e "$dir/hold" ]; then
            script=$(cat "$job/waits")
            rm "$job/waits"
            setsid sh "$script" </dev/null >/dev/null 2>&1 &
            echo $! >"$job/pid"
        fi
        state=ENDED
        if [ -e "$job/cancelled" ]; then
            state=CANCELLED
        elif [ -e "$job/waits" ] || [ ! -s "$job/pid" ]; then
            state="WAITS held by a test, or being submitted"
        elif [ -e "$job/lost" ]; then
            state=LOST
        elif grep -qv ' Z ' "/proc/$(cat "$job/pid")/stat" 2>/dev/null; then
            state=RUNS
            [ ! -e "$dir/dead" ] || { touch "$job/lost"; state=LOST; }
        fi
        echo "${job##*/} $state"
    done
    rm -f "$dir/dead"
    ;;
cancel)
    job=$dir/jobs/$3
    if [ -e "$job/waits" ]; then
        rm "$job/waits"
        touch "$job/cancelled"
    elif [ -e "$job/pid" ] && [ ! -e "$job/lost" ]; then
        kill "$(cat "$job/pid")" 2>/dev/null || true
    fi
    ;;
esac
