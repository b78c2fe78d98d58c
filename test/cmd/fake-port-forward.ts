/** Prints and does what `kubectl port-forward` does: `LOCAL:REMOTE`, and the Unix socket behind the remote port. */
import { type AddressInfo, connect, createServer } from 'node:net';
import { pipeline } from 'node:stream';

const [ports = '', socket = ''] = process.argv.slice(2);
const [local = '', remote = ''] = ports.split(':');
const server = createServer((client) => {
  console.log(`Handling connection for ${(server.address() as AddressInfo).port}`);
  const agent = connect(socket);
  pipeline(client, agent, client, (error) => {
    if ((error as NodeJS.ErrnoException | null)?.code !== 'ENOENT') return;
    console.error('error: lost connection to pod');
    process.exit(1);
  });
});
server.on('error', () => {
  console.error(
    `Unable to listen on port ${local}: Listeners failed to create with the following errors: ` +
      `[unable to create listener: Error listen tcp4 127.0.0.1:${local}: bind: address already in use]\n` +
      `error: unable to listen on any of the requested ports: [{${local} ${remote}}]`,
  );
  process.exit(1);
});
server.listen(Number(local), '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  console.log(`Forwarding from 127.0.0.1:${port} -> ${remote}`);
});
