"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const view = document.getElementById("view");

function make(name, parent, properties = {}) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

function draw(name, parent, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

