"""The policy that is in force where `--on-hang policy` names no other; the file that a user writes looks the same."""

DEFAULT_POLICY = """\
# What is done when a job hangs. A warning, a forecast, and a rank that is merely late never do anything.
#   report             report it
#   capture            write what is known of it to a file as well; the following do so, too
#   abort              end the job: it would hang again in the same way
#   restart            end the job, and start it again
#   restart_elsewhere  the same without the nodes at fault: whoever places the job has to do it

restarts_max = 3           # of one job; the next time it is ended
restarts_unsaved_max = 0   # of them, those after a restart since which it has saved no checkpoint
# hook = "/site/bin/on-hang"   # an executable that is run once for each hang before the job is ended; it reads JSON
# hook_timeout_s = 30          # after which the hook is killed

[proven]
other = "abort"    # every cause that is not named here
process_frozen = "restart"
rank_crashed = "restart"
node_lost = "restart_elsewhere"
transport = "restart_elsewhere"
undetermined = "capture"

[stalled]
other = "capture"
process_frozen = "restart"
host_stall = "restart"
data_stall = "restart"
stuck_save = "restart"
init_incomplete = "restart"
node_lost = "restart_elsewhere"
transport = "restart_elsewhere"

[stalled_for_s]    # a hang that is likely and not proven, STALLED, may still end by itself for so many seconds
other = 120
process_frozen = 15
node_lost = 30
stuck_save = 300
init_incomplete = 300
"""
