/** Removes a demo whose process was killed by a signal that cannot be caught. */
import { execa } from 'execa';

/**
 * Reads until the demo closes the pipe or is gone, then removes what is left. The first argument is the directory, the
 * others are namespaces.
 */
const SCRIPT = `
read -r _
directory=$1
shift
for namespace; do
  [ -e "/run/netns/$namespace" ] || continue
  pids=$(ip netns pids "$namespace")
  # shellcheck disable=SC2086 # a list
  [ -z "$pids" ] || kill -KILL $pids
  ip netns delete "$namespace"
done
rm -rf -- "$directory"
`;

/** Starts the watchdog. @returns a function that ends it after an orderly end of the demo. */
export function startWatchdog(
  directory: string,
  namespaces: readonly string[],
): () => Promise<void> {
  const child = execa('sh', ['-c', SCRIPT, 'sh', directory, ...namespaces], {
    stdin: 'pipe',
    stdout: 'ignore',
    stderr: 'ignore',
    // In a session of its own, where no Ctrl-C reaches it; it outlives the demo.
    detached: true,
    cleanup: false,
    reject: false,
  });
  return async () => {
    child.stdin.end();
    await child;
  };
}
