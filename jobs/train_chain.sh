# The shared part of jobs/*.sbatch, sourced at their end. It starts zea on the ranks of a Slurm job, forwards the job's signals to it, and
# requeues the job if zea stopped with a checkpoint before its end (exit code 75). The next start of the same job resumes the run
# directory of the first, which `.zea-job-<id>` records. Any other exit code, and scancel, end the chain.
#
# Signals are forwarded as the files SAVE and STOP in the run directory, which work with every launcher and at any moment: a signal that
# reaches a rank or a launcher while it starts kills it.
shopt -s nullglob
set -u

note() { printf '%s job %s: %s\n' "$(date '+%F %T')" "$SLURM_JOB_ID" "$1"; }

# give_up CODE SENTENCE: ends the chain.
give_up() {
  note "$2"
  rm -f "$record"
  exit "$1"
}

on_save() {
  signalled=yes
  asked_to_save=yes
  hand_on
}

on_leave() {
  signalled=yes
  asked_to_leave=yes
  hand_on
}

# Slurm ends the job: scancel, a requeue, preemption whose grace time is over. It has told all processes of the job itself.
on_end() {
  signalled=yes
  ended_by_slurm=yes
}

# Asks zea for what the signals said, as soon as it is known where. The record is told first: the next start of a job that is killed
# takes its files back, and no others.
hand_on() {
  local name
  [ -n "$directory" ] && [ -n "$asked_to_save$asked_to_leave" ] || return 0
  touched="${asked_to_save:+SAVE }${asked_to_leave:+STOP}"
  [ ! -s "$record" ] || remember
  mkdir -p "$directory"
  for name in $touched; do touch "$directory/$name"; done
}

# Takes back what zea did not take, so that no later run does.
take_back() {
  local name names=$touched
  touched='' # before a signal touches them again
  own_stop_is_left=''
  for name in $names; do
    if [ "$name" = STOP ] && [ -e "$directory/STOP" ]; then own_stop_is_left=yes; fi
    rm -f "$directory/$name"
  done
  [ ! -s "$record" ] || remember
}

how_to_go_on() { echo "go on with sbatch <job script> -r $directory"; }

# For a STOP that is not the script's own.
give_up_as_asked() {
  local by="a STOP file or a signal from outside the job"
  give_up 75 "zea was asked to leave, by $by: not queued again; $(how_to_go_on)"
}

# The run's log, to which each start appends.
log_bytes() { if [ -f "$directory/log.txt" ]; then stat -c %s "$directory/log.txt"; else echo 0; fi; }

# Whether zea took a STOP in this start, and not the script's own.
took_stop() {
  [ -z "$asked_to_leave" ] || [ -n "$own_stop_is_left" ] || return 1
  [ -f "$directory/log.txt" ] &&
    tail -c "+$((log_bytes_before + 1))" "$directory/log.txt" | grep -q "found the file STOP in "
}

# Prints the manifest of the newest complete checkpoint of a run; nothing without one.
newest_manifest() {
  local manifests=("$1"/checkpoints/step-????????/manifest.json)
  [ "${#manifests[@]}" -eq 0 ] || echo "${manifests[-1]}"
}

# Its step; -1 without one.
newest_step() {
  local manifest name
  manifest=$(newest_manifest "$1")
  [ -n "$manifest" ] || { echo -1 && return; }
  name=${manifest%/manifest.json}
  echo $((10#${name##*/step-}))
}

# Its name and when it was written; nothing without one.
newest_mark() {
  local manifest
  manifest=$(newest_manifest "$1")
  [ -z "$manifest" ] || stat -c '%n %y' "$manifest"
}

# Prints all complete checkpoints, one per line.
all_marks() {
  local manifests=("$1"/checkpoints/step-????????/manifest.json)
  [ "${#manifests[@]}" -eq 0 ] || stat -c '%n %y' "${manifests[@]}"
}

# Whether there is one that was not there before this start. Its step may be lower than that of a damaged one, which zea sets aside.
wrote_checkpoint() { all_marks "$directory" | grep -qvxF -f <(echo "$marks_before"); }

# Sets `directory` as zea itself chooses it, which also tells faults of the deck before any rank is started.
ask_for_directory() {
  local plan code=0
  plan=$("${zea_command[@]}" -n --ranks "$SLURM_NTASKS" "$@") || code=$?
  [ "$code" -eq 0 ] || give_up "$code" "zea refused what it was given (exit code $code); the chain ends"
  directory=$(sed -n '/^\[run\]/,/^\[model\]/ s/^directory = "\(.*\)"$/\1/p' <<<"$plan")
  [[ $directory != *\\* ]] || give_up 2 "a run directory with quotes or backslashes is more than this script can read: $directory"
}

# Sets `start` (what zea is to begin with), `directory`, and `fast_starts` (how many short ones came just before this one).
choose_start() {
  start=(-i "$1")
  shift
  if [ "${start[1]}" = -r ]; then
    start=(-r "${1:?"-r wants a run directory or a checkpoint"}")
    shift
  fi
  options=("$@")
  fast_starts=0
  if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -s "$record" ]; then
    local where
    # A signal is handed on, and the record written anew, once `directory` is known: not before all was read.
    { read -r fast_starts && read -r where && read -r newest_at_first && read -r touched && read -r stopped; } <"$record"
    directory=$where
    take_back # of a start that was killed
    [ -z "$stopped" ] || give_up_as_asked
    # Somebody else wants the job to end, and perhaps touched it while the job waited. A SAVE like that is left for zea.
    if [ -e "$directory/STOP" ] && [ -z "$asked_to_leave" ]; then
      rm -f "$directory/STOP"
      give_up_as_asked
    fi
    # One that was killed before it wrote a checkpoint begins as the first did: with an older one, perhaps.
    if [ "$(newest_mark "$directory")" != "$newest_at_first" ]; then start=(-r "$directory"); fi
    return
  fi
  ask_for_directory "${start[@]}" "${options[@]}"
  newest_at_first=$(newest_mark "$directory")
  # A new run in a directory that holds checkpoints is refused by zea; a later start must not go on with them.
  if [ "${start[0]}" = -r ] || [ -z "$newest_at_first" ]; then remember; fi
}

# State that later starts of the job read.
remember() { printf '%s\n' "$fast_starts" "$directory" "$newest_at_first" "$touched" "$stopped" >"$record"; }

# Prints the variables that the job script wants to be shown.
show_variables() {
  local found
  found=$(env | grep -E "^($shown_variables)" | sort | paste -sd ' ')
  [ -z "$found" ] || note "set: $found"
}

# Looks at the nodes as the run will use them. Not before a plan, which uses none.
check() {
  [ -z "${shown_variables:-}" ] || show_variables
  if [ "${check_nodes:-no}" != yes ] || [[ " $* " == *" -n "* ]]; then return; fi
  run --check-node "$@"
  heed_slurm
  case $code in
    0) ;;
    8) give_up 8 "a node is sick (above): submit this again without it; ZEA_CHECK_NODES=no leaves the check out. The chain ends" ;;
    *) give_up "$code" "zea --check-node ended with exit code $code; the chain ends" ;;
  esac
}

# Runs zea on all ranks and sets `code` to its exit code. A signal ends bash's wait, not zea.
run() {
  case $launcher in
    mpirun) set -- mpirun -n "$SLURM_NTASKS" "${mpirun_options[@]}" "${zea_command[@]}" "$@" ;;
    srun) set -- srun --ntasks="$SLURM_NTASKS" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${srun_options[@]}" "${zea_command[@]}" "$@" ;;
    *) give_up 2 "launcher=$launcher is not known; allowed: mpirun, srun" ;;
  esac
  "$@" &
  while :; do
    signalled=''
    code=0
    wait $! || code=$?
    [ -n "$signalled" ] || break
  done
}

# After exit code 75. Starts that bring the run no further must not follow each other for ever.
go_on_later() {
  local step=$1 seconds=$2
  wrote_checkpoint ||
    give_up 75 "no checkpoint is newer than when this start began, so another would not help: allow more time (--time, --signal)"
  if took_stop || { [ -z "$asked_to_leave" ] && [[ " ${options[*]} " != *" -t "* ]]; }; then give_up_as_asked; fi
  fast_starts=$((seconds < shortest_start_seconds ? fast_starts + 1 : 0))
  [ "$fast_starts" -lt "$most_fast_starts" ] ||
    give_up 75 "$fast_starts starts in a row lasted less than $shortest_start_seconds s: allow more time, then $(how_to_go_on)"
  newest_at_first=''
  remember
  note "zea left after step $step; queued again, to go on with -r $directory"
  queue_again
}

queue_again() {
  local code=0
  scontrol requeue "$SLURM_JOB_ID" || code=$?
  # As soon as the job is queued again Slurm ends all of its processes, this scontrol too, whether or not it has heard the answer:
  # the record stays for the next start, which there may be.
  [ "$code" -eq 0 ] || note "scontrol ended with $code; should Slurm not queue this job again, $(how_to_go_on)"
  exit 75
}

# A job that Slurm ended starts again where Slurm itself queued it again; scancel ends the chain.
leave_to_slurm() {
  local restarts
  restarts=$(scontrol -o show job "$SLURM_JOB_ID" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p')
  if [ "${restarts:-0}" -le "${SLURM_RESTART_COUNT:-0}" ]; then give_up "$code" "cancelled"; fi
  if took_stop; then # the next start ends by it
    stopped=yes
    remember
  fi
  note "queued again by Slurm"
  exit "$code"
}

# Whether Slurm gives the nodes to another job after a grace time. It tells the steps then, not this script: under srun zea leaves with
# a checkpoint, an mpirun of several nodes fails as its daemons end.
is_preempted() {
  local since
  since=$(scontrol -o show job "$SLURM_JOB_ID" | sed -n 's/.* PreemptTime=\([^ ]*\).*/\1/p')
  [ "${since:-None}" != None ]
}

# After run: what Slurm does to the job counts more than the code that zea ended with.
heed_slurm() {
  [ -z "$ended_by_slurm" ] || leave_to_slurm
  if [ "$code" -ne 0 ] && is_preempted; then
    ! took_stop || give_up_as_asked
    note "preempted (exit code $code); queued again, to go on with what is in $directory"
    queue_again
  fi
}

train() {
  local begin=$SECONDS
  choose_start "$@"
  marks_before=$(all_marks "$directory")
  log_bytes_before=$(log_bytes)
  note "start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_NTASKS ranks of $SLURM_JOB_NODELIST: zea ${start[*]} ${options[*]}"
  hand_on
  check "${start[@]}" "${zea_options[@]}" "${options[@]}"
  run "${start[@]}" "${zea_options[@]}" "${options[@]}"
  take_back
  heed_slurm
  case $code in
    0) give_up 0 "done" ;;
    137) give_up 137 "zea ended with exit code 137; the chain ends. A rank was killed: perhaps the job's memory was too small (--mem;\
 zea -n says what a rank takes)" ;;
    75) go_on_later "$(newest_step "$directory")" $((SECONDS - begin)) ;;
    *) give_up "$code" "zea ended with exit code $code; the chain ends" ;;
  esac
}

record=.zea-job-$SLURM_JOB_ID
directory='' newest_at_first='' touched='' stopped='' own_stop_is_left=''
asked_to_save='' asked_to_leave='' ended_by_slurm=''
trap on_save USR1
trap on_leave USR2
trap on_end TERM
[ -n "${SLURM_NTASKS:-}" ] || give_up 2 "Slurm gives no number of ranks (SLURM_NTASKS): add --ntasks-per-node or --ntasks to sbatch"
# ZEA may be a command with arguments, as "apptainer run zea.sif".
read -ra zea_command <<<"$zea"
if [ -x "$zea" ]; then zea_command=("$zea"); fi
if [ $# -eq 0 ]; then give_up 2 "no deck: sbatch <job script> inputs/<deck>.toml [section.key=value ...], or -r and a run directory"; fi
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# mpirun gives up a node that does not answer for 90 s, instead of 8 minutes. It must do so before a watchdog ends the ranks: after that,
# mpirun would wait a quarter of an hour for the daemon of a node that is cut off.
export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-60}
export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-10}
export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
train "$@"
