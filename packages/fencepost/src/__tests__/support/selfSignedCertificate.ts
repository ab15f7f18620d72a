import { generateKeyPairSync, sign } from "node:crypto";

/** A key and a certificate for one host name, valid from 2020 to 2049. Node makes keys, but no certificates. */
export function selfSignedCertificate(host: string): { readonly key: string; readonly cert: string } {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const ed25519 = der(0x30, Buffer.from("06032b6570", "hex"));
  const commonName = der(0x30, Buffer.from("0603550403", "hex"), der(0x0c, Buffer.from(host)));
  const name = der(0x30, der(0x31, commonName));
  const time = (text: string): Buffer => der(0x17, Buffer.from(text));
  const subjectAltName = der(
    0x30,
    Buffer.from("0603551d11", "hex"),
    der(0x04, der(0x30, der(0x82, Buffer.from(host)))),
  );
  const content = der(
    0x30,
    der(0xa0, der(0x02, Buffer.from([2]))), // version 3
    der(0x02, Buffer.from([1])), // serial number
    ed25519,
    name, // issuer
    der(0x30, time("200101000000Z"), time("491231235959Z")),
    name, // subject
    publicKey.export({ type: "spki", format: "der" }),
    der(0xa3, der(0x30, subjectAltName)),
  );
  const signature = der(0x03, Buffer.from([0]), sign(null, content, privateKey));
  const lines = der(0x30, content, ed25519, signature).toString("base64").replace(/.{64}/g, "$&\n");
  return {
    key: privateKey.export({ type: "pkcs8", format: "pem" }) as string,
    cert: `-----BEGIN CERTIFICATE-----\n${lines}\n-----END CERTIFICATE-----\n`,
  };
}

/** One value in DER: its tag, its length, its content. */
function der(tag: number, ...parts: readonly Buffer[]): Buffer {
  const content = Buffer.concat(parts);
  const { length } = content;
  const header = length < 0x80 ? [tag, length] : [tag, 0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.from(header), content]);
}
