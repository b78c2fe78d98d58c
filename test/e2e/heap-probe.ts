/**
 * Preloaded into an agent under test: at SIGUSR2 it collects all garbage and adds a line to the log,
 * `heap`, with the bytes that are left. Needs --expose-gc.
 */
process.on('SIGUSR2', () => {
  // Until nothing more is found; once leaves megabytes of code that is no longer used, or not.
  globalThis.gc?.({ type: 'major', execution: 'sync', flavor: 'last-resort' });
  const { heapUsed, external } = process.memoryUsage();
  const line = { level: 30, msg: 'heap', bytes: heapUsed + external };
  process.stdout.write(`${JSON.stringify(line)}\n`);
});
