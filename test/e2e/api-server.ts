/**
 * Lists and watches Services, EndpointSlices and Nodes over HTTP, as far as the agent asks an API
 * server for them: no API server can be installed on a machine without a cluster. It is a process of
 * its own, for it must run in the node's namespace. Reads watch events from stdin, one JSON a line,
 * and prints its port once it listens.
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';

interface Event {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED';
  readonly object: { kind: string; metadata: { namespace?: string; name: string } };
}

const KINDS: Readonly<Record<string, string>> = {
  services: 'Service',
  endpointslices: 'EndpointSlice',
  nodes: 'Node',
};

let version = 1;
const objects = new Map<string, Event['object']>();
const watchers = new Map<ServerResponse, string>();

const server = createServer((request, response) => {
  const url = new URL(request.url ?? '/', 'http://localhost');
  const kind = KINDS[url.pathname.split('/').at(-1) ?? ''];
  if (kind === undefined) {
    response.writeHead(404).end();
  } else if (url.searchParams.get('watch') === 'true') {
    response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
    if (url.searchParams.get('resourceVersion') !== String(version)) {
      // Keeps no history: whoever does not stand at this version has to list again.
      const status = { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' };
      response.end(`${JSON.stringify({ type: 'ERROR', object: status })}\n`);
      return;
    }
    watchers.set(response, kind);
    response.on('close', () => watchers.delete(response));
  } else {
    const items = [...objects.values()].filter((object) => object.kind === kind);
    const list = { kind: `${kind}List`, metadata: { resourceVersion: String(version) }, items };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
  }
});

createInterface({ input: process.stdin }).on('line', (line) => {
  const event = JSON.parse(line) as Event;
  const { kind, metadata } = event.object;
  version += 1;
  const key = `${kind} ${metadata.namespace}/${metadata.name}`;
  const object = { ...event.object, metadata: { ...metadata, resourceVersion: String(version) } };
  if (event.type === 'DELETED') objects.delete(key);
  else objects.set(key, object);
  for (const [watcher, watched] of watchers) {
    if (watched === kind) watcher.write(`${JSON.stringify({ type: event.type, object })}\n`);
  }
});

server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
