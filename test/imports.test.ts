import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

const ROOT = new URL('..', import.meta.url).pathname;

/** Which folders a folder may import from, besides itself. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  api: [],
  sync: [],
  netlink: ['api', 'sync'],
  process: ['api', 'netlink', 'sync'],
  endpoints: ['api'],
  services: ['api', 'endpoints'],
  sources: ['api', 'process', 'sync'],
  nft: ['api', 'netlink', 'process', 'sync'],
  traffic: ['api', 'endpoints', 'services', 'localhost', 'config'],
  proxier: ['api', 'endpoints', 'services', 'traffic', 'localhost', 'sources', 'netlink', 'sync'],
  iptables: ['config', 'api', 'endpoints', 'services', 'traffic', 'proxier', 'process', 'netlink'],
  ipvs: [
    'config',
    'api',
    'endpoints',
    'services',
    'traffic',
    'proxier',
    'netlink',
    'iptables',
    'sync',
  ],
  nftables: ['api', 'endpoints', 'services', 'traffic', 'proxier', 'netlink', 'nft', 'sync'],
  policy: ['api', 'sync', 'netlink', 'nft', 'iptables'],
  config: ['api', 'dns', 'process'],
  metrics: ['api', 'dns', 'process', 'sources'],
  envvars: ['api'],
  events: ['api', 'sync'],
  dns: ['api', 'sources'],
  health: ['api', 'services', 'process', 'sync'],
  localhost: ['api', 'services', 'process', 'sync'],
  takeover: [
    'api',
    'config',
    'metrics',
    'iptables',
    'ipvs',
    'netlink',
    'nftables',
    'policy',
    'process',
    'sync',
  ],
};

describe('imports run one way', () => {
  for (const [folder, allowed] of Object.entries(ALLOWED)) {
    it(folder, () => {
      for (const file of globSync(`${folder}/**/*.ts`, { cwd: ROOT })) {
        const text = readFileSync(join(ROOT, file), 'utf8');
        for (const [, specifier = ''] of text.matchAll(/from '(\.[^']+)'/g)) {
          const target = relative(ROOT, join(ROOT, dirname(file), specifier)).split('/')[0] ?? '';
          assert.ok(target === folder || allowed.includes(target), `${file} imports ${specifier}`);
        }
      }
    });
  }

  const files = globSync(
    '{agent,api,cmd,config,dns,endpoints,envvars,events,health,iptables,ipvs,localhost,metrics,nft,nftables,policy,process,proxier,services,sources,sync,takeover,traffic}/**/*.ts',
    { cwd: ROOT },
  );

  it('only netlink/ opens netlink sockets', () => {
    for (const file of files) {
      assert.doesNotMatch(readFileSync(join(ROOT, file), 'utf8'), /koffi|NetlinkSocket/, file);
    }
  });

  it('only process/run-program.ts, which sets a time limit, starts programs', () => {
    const starts = /from 'node:child_process'|\bexeca\b[^}]*\} from 'execa'/;
    const found = files.filter((file) => starts.test(readFileSync(join(ROOT, file), 'utf8')));
    assert.deepEqual(found, ['process/run-program.ts']);
  });
});
