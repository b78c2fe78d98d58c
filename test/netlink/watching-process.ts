/** Watches addresses and then exits in the way given by its argument. */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { dumpConntrack } from '../../netlink/conntrack/conntrack.ts';
import { watchAddresses } from '../../netlink/route/address-watch.ts';

const way = isMainThread ? process.argv[2] : workerData;
const watch = await watchAddresses(() => undefined, { onError: console.error });

switch (way) {
  case 'close':
    console.log('exiting');
    await watch.close();
    break;
  case 'exit':
    console.log('exiting');
    process.exit(0);
    break;
  case 'exit during a dump':
    for (let index = 0; index < 8; index++) void dumpConntrack({ family: 'IPv4' });
    console.log('exiting');
    setImmediate(() => process.exit(0));
    break;
  case 'worker thread': {
    const worker = new Worker(new URL(import.meta.url), { workerData: 'inside' });
    worker.once('message', async () => {
      await worker.terminate();
      console.log('exiting');
      await watch.close();
    });
    break;
  }
  case 'inside':
    parentPort?.postMessage('ready');
    break;
}
