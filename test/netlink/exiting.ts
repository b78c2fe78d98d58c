/** Starts a watch of addresses and then leaves in the way its argument names. */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { dumpConntrack } from '../../netlink/conntrack/conntrack.ts';
import { watchAddresses } from '../../netlink/route/address-watch.ts';

const way = isMainThread ? process.argv[2] : workerData;
const watch = await watchAddresses(() => undefined, { onError: console.error });

switch (way) {
  case 'close':
    console.log('leaving');
    await watch.close();
    break;
  case 'exit':
    console.log('leaving');
    process.exit(0);
    break;
  case 'exit while dumping':
    for (let index = 0; index < 8; index++) void dumpConntrack({ family: 'IPv4' });
    console.log('leaving');
    setImmediate(() => process.exit(0));
    break;
  case 'worker': {
    const worker = new Worker(new URL(import.meta.url), { workerData: 'inside' });
    worker.once('message', async () => {
      await worker.terminate();
      console.log('leaving');
      await watch.close();
    });
    break;
  }
  case 'inside':
    parentPort?.postMessage('ready');
    break;
}
