/** The command line. cmd/ has one file per command, which turns flags into an exit status. */
import { createProgram } from './program.ts';

const program = await createProgram(process.argv[2]);

// Usage errors of commands have their own statuses, which these commands must not inherit.
program.exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : 2));
const [named = ''] = process.argv.slice(2);
// Servers write logs only, and go on without them.
if (named !== 'run' && named !== 'dns') endWithOutput();

try {
  await program.parseAsync();
} catch (error) {
  // Loaded late, because it loads the netlink errors.
  const { userMessage } = await import('../process/user-message.ts');
  const sentence = userMessage(error);
  const text = sentence?.replaceAll('\n', '\nportwide: ') ?? String((error as Error).stack);
  process.stderr.write(`portwide: ${text}\n`);
  // A command in which status 1 is not an error, such as `policy explain`, has set process.exitCode.
  process.exit(process.exitCode ?? 1);
}

/** Ends the process when its output has no reader (`| head`), without a message as kubectl does, or cannot be written. */
function endWithOutput(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    process.stderr.write(`portwide: cannot write the output: ${error.message}\n`);
    process.exit(2);
  });
}
