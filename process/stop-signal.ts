/** The first of these signals; whoever sends another does not want to wait. */
export function stopSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let isStopping = false;
    const stop = (signal: NodeJS.Signals) => {
      if (isStopping) process.exit(1);
      isStopping = true;
      resolve(signal);
    };
    // Not once(): while a command runs, execa's signal-exit listens too, and where it finds nobody
    // else listening it has the signal end this process.
    process.on('SIGTERM', stop);
    process.on('SIGINT', stop);
  });
}
