/**
 * Lists the objects of its first argument, holds watches open, and takes Events: prints its port,
 * then each Event that is created, one JSON a line. It is a process of its own, for it must run in
 * the node's namespace.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const KINDS: Readonly<Record<string, string>> = {
  services: 'Service',
  endpointslices: 'EndpointSlice',
  nodes: 'Node',
};
const objects = JSON.parse(process.argv[2] ?? '[]') as { kind: string }[];

const server = createServer((request, response) => {
  const url = new URL(request.url ?? '/', 'http://localhost');
  const resource = url.pathname.split('/').at(-1) ?? '';
  if (request.method === 'POST' && resource === 'events') {
    let body = '';
    request.setEncoding('utf8');
    request.on('data', (chunk: string) => {
      body += chunk;
    });
    request.on('end', () => {
      process.stdout.write(`${body}\n`);
      response.writeHead(201, { 'content-type': 'application/json' }).end(body);
    });
  } else if (url.searchParams.get('watch') === 'true') {
    response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
  } else {
    const items = objects.filter(({ kind }) => kind === KINDS[resource]);
    const list = { kind: `${KINDS[resource]}List`, metadata: { resourceVersion: '1' }, items };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
  }
});

server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
